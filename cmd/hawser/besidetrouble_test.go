// Tests of what a hub says of an API server that refuses it something, or is another one,
// while it runs.

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	clientrest "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/controlplane/loop"
)

// A moodyCluster is an API server that has no objects and is in one of many moods.
type moodyCluster struct {
	mu      sync.Mutex // guards the following
	away    error      // what requests fail with; nil means that it answers
	code    int        // what all are answered with; zero means what they should be
	refused string     // part of "verb resource/subresource" of what is refused; "-" is none
	turned  context.Context
	turn    context.CancelFunc // ends all watches
}

// become changes the mood, and ends the watches.
func (c *moodyCluster) become(away error, code int, refused string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turn != nil {
		c.turn()
	}
	c.away, c.code, c.refused = away, code, refused
	c.turned, c.turn = context.WithCancel(context.Background())
}

// RoundTrip implements http.RoundTripper.
func (c *moodyCluster) RoundTrip(req *http.Request) (*http.Response, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	info, err := requestInfos.NewRequestInfo(req)
	failure := metav1.Status{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure}
	switch {
	case err != nil:
		return nil, err
	case c.away != nil:
		return nil, c.away
	case c.code != 0:
		failure.Reason, failure.Message = metav1.StatusReasonUnauthorized, "Unauthorized"
		return answer(c.code, &failure)
	case info.IsResourceRequest && strings.Contains(info.Verb+" "+info.Resource+"/"+info.Subresource, c.refused):
		failure.Reason, failure.Message = metav1.StatusReasonForbidden, fmt.Sprintf("%s %q is forbidden: User \"hub\" cannot %s resource %q", info.Resource, info.Name, info.Verb, info.Resource)
		return answer(http.StatusForbidden, &failure)
	case info.Resource == "selfsubjectaccessreviews":
		var review authorizationv1.SelfSubjectAccessReview
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			return nil, err
		}
		a := review.Spec.ResourceAttributes
		review.Status.Allowed = !strings.Contains(a.Verb+" "+a.Resource+"/"+a.Subresource, c.refused)
		return answer(http.StatusCreated, &review)
	case info.Verb == "watch" && req.URL.Query().Get("sendInitialEvents") != "":
		failure.Reason = metav1.StatusReasonInvalid // it is listed instead
		return answer(http.StatusUnprocessableEntity, &failure)
	case info.Verb == "watch":
		body, w := io.Pipe()
		for _, end := range []context.Context{c.turned, req.Context()} {
			context.AfterFunc(end, func() { w.Close() })
		}
		return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: body}, nil
	case info.Verb == "list":
		return answer(http.StatusOK, &corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}})
	}
	return answer(http.StatusOK, &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}})
}

func answer(code int, body any) (*http.Response, error) {
	if failure, ok := body.(*metav1.Status); ok {
		failure.Code = int32(code)
	}
	text, err := json.Marshal(body)
	return &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(text))}, err
}

// lockedLog is a log that many write.
type lockedLog struct {
	mu   sync.Mutex
	text bytes.Buffer // guarded by mu
}

func (l *lockedLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// take returns the lines since it was last called.
func (l *lockedLog) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return strings.FieldsFunc(l.text.String(), func(r rune) bool { return r == '\n' })
}

// moodyHub runs what a hub has of clients, informers, queues and events beside c until the
// test ends: every node's status is written every ten seconds.
func moodyHub(t *testing.T, c *moodyCluster) *lockedLog {
	t.Helper()
	o, err := parse(t, "--kubeconfig", "x")
	if err != nil {
		t.Fatal(err)
	}
	said := &lockedLog{}
	log := slog.New(slog.NewTextHandler(said, nil))
	o.beside.told = new(atomic.Bool)
	bridgeKlog(log, o.beside.told)
	t.Cleanup(klog.ClearLogger)
	conf := &clientrest.Config{Host: "https://api", Transport: c, QPS: -1, ContentConfig: clientrest.ContentConfig{ContentType: "application/json"}}
	tr, err := newTrouble(o, conf, log)
	if err != nil {
		t.Fatal(err)
	}
	api, err := tr.newClient(conf)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactory(api, 0)
	factory.Core().V1().Nodes().Informer()
	factory.Start(ctx.Done())
	events := record.NewBroadcaster(record.WithContext(ctx))
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: api.CoreV1().Events("")})
	recorder := events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "hub"})
	q := loop.NewQueue(loop.Config[string]{Name: "q", Log: log, Do: func(ctx context.Context, key string) (time.Duration, error) {
		recorder.Event(&corev1.ObjectReference{Kind: "Node", Name: key}, corev1.EventTypeNormal, "Written", "a whole structure")
		_ = api.CoreV1().Pods("ns").Delete(ctx, "p", metav1.DeleteOptions{}) // which no table has
		_, err := api.CoreV1().Nodes().Patch(ctx, key, types.MergePatchType, []byte("{}"), metav1.PatchOptions{}, "status")
		return 10 * time.Second, err
	}})
	for i := range 50 {
		q.Add(fmt.Sprintf("node-%d", i))
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := loop.Together(ctx, q.Run, func(ctx context.Context) error { return tr.run(ctx, auth.NewServerNames()) }); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		factory.Shutdown()
		synctest.Wait()
	})
	return said
}

// count is how many of lines have all of texts.
func countLines(lines []string, texts ...string) (n int) {
	for _, line := range lines {
		has := true
		for _, text := range texts {
			has = has && strings.Contains(line, text)
		}
		if has {
			n++
		}
	}
	return n
}

// TestTroubleWhileRunning: what begins to be the matter is told with its remedy within a
// minute, once, and when it is over. Nothing else floods the log.
func TestTroubleWhileRunning(t *testing.T) {
	if _, here := alone(t); !here { // it sets klog's logger
		return
	}
	stranger := &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}
	for name, tc := range map[string]struct {
		away    error
		code    int
		refused string
		want    []string // a line each
		retries int      // lines of the queue, at most
	}{
		"a permission":          {nil, 0, "patch nodes/status", []string{"verb=patch resource=nodes/status"}, 1},
		"all of a resource":     {nil, 0, " nodes/", []string{"verb=get resource=nodes ", "verb=list resource=nodes ", "verb=watch resource=nodes ", "verb=patch resource=nodes/status"}, 1},
		"what no table has":     {nil, 0, "delete pods/", []string{`verb=delete resource="pods (ns/p)"`}, 0},
		"the token":             {nil, http.StatusUnauthorized, "-", []string{"does not accept the token"}, 1},
		"another's certificate": {stranger, 0, "-", []string{"what answers as the API server is not it"}, 1},
		"gone":                  {errors.New("connection refused"), 0, "-", []string{"the API server cannot be reached"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &moodyCluster{}
				c.become(nil, 0, "-")
				log := moodyHub(t, c)
				<-time.After(10 * time.Minute)
				if lines := log.take(); len(lines) > 0 {
					t.Errorf("of nothing it says\n%s", strings.Join(lines, "\n"))
				}
				c.become(tc.away, tc.code, tc.refused)
				<-time.After(59 * time.Second)
				lines := log.take()
				for _, want := range tc.want {
					if n := countLines(lines, want, "level=WARN"); n != 1 {
						t.Errorf("%d lines say %q", n, want)
					}
				}
				if n := countLines(lines, "grant="); tc.refused != "" && n != countLines(tc.want, "verb=") {
					t.Errorf("%d lines with a command that grants", n)
				}
				if n := countLines(lines, "will retry"); n > tc.retries {
					t.Errorf("%d lines of retries", n)
				}
				if n := countLines(lines, "Failed to watch") + countLines(lines, "a whole structure"); n > 0 {
					t.Errorf("%d raw lines", n)
				}
				if t.Failed() {
					t.Logf("in a minute it says\n%.9000s", strings.Join(lines, "\n"))
				}
				<-time.After(10 * time.Minute)
				if n := countLines(log.take(), tc.want[0]); n > 0 {
					t.Errorf("it is told %d times more in ten minutes", n)
				}
				c.become(nil, 0, "-")
				<-time.After(2 * time.Minute)
				if lines := log.take(); countLines(lines, "the API server serves the hub again") != 1 {
					t.Errorf("that it is over is not told:\n%s", strings.Join(lines, "\n"))
				}
			})
		})
	}
}

// TestTroubleFromTheStart: what is the matter when a hub starts is told at once, once, and
// when it is over.
func TestTroubleFromTheStart(t *testing.T) {
	if _, here := alone(t); !here { // it sets klog's logger
		return
	}
	for want, code := range map[string]int{"grant=": 0, "does not accept the token": http.StatusUnauthorized} {
		synctest.Test(t, func(t *testing.T) {
			c := &moodyCluster{}
			c.become(nil, code, "patch nodes/status")
			log := moodyHub(t, c)
			<-time.After(time.Second)
			lines := log.take()
			if n := countLines(lines, want); n != 1 || countLines(lines, "cannot tell") > 0 {
				t.Errorf("%d lines say %q:\n%s", n, want, strings.Join(lines, "\n"))
			}
			<-time.After(10 * time.Minute)
			c.become(nil, 0, "-")
			<-time.After(2 * time.Minute)
			if lines = log.take(); countLines(lines, want) > 0 || countLines(lines, "serves the hub again") != 1 {
				t.Errorf("later it says\n%s", strings.Join(lines, "\n"))
			}
		})
	}
}

// TestTroubleOfAStart: what an API server refuses while it starts is not told.
func TestTroubleOfAStart(t *testing.T) {
	if _, here := alone(t); !here { // it sets klog's logger
		return
	}
	synctest.Test(t, func(t *testing.T) {
		c := &moodyCluster{}
		c.become(nil, 0, "-")
		log := moodyHub(t, c)
		for range 10 {
			<-time.After(5 * time.Minute)
			c.become(errors.New("connection refused"), 0, "-")
			<-time.After(4 * time.Second)
			c.become(nil, 0, "") // its roles are not loaded
			<-time.After(3 * time.Second)
			c.become(nil, 0, "-")
		}
		<-time.After(5 * time.Minute)
		lines := log.take()
		if n := len(lines) - countLines(lines, "will retry"); n > 0 {
			t.Errorf("%d lines of a refusal that is over:\n%s", n, strings.Join(lines, "\n"))
		}
	})
}

// TestIncompleteLook: what a look did not come to has not ended, and is not told once more.
func TestIncompleteLook(t *testing.T) {
	said := &lockedLog{}
	tr := &trouble{o: &serverOptions{}, log: slog.New(slog.NewTextHandler(said, nil)), said: make(map[string]bool)}
	refused, unanswered := []remark{{text: "refused", about: "patch nodes"}}, []remark{{text: "unanswered"}}
	for _, look := range []struct {
		found    []remark
		complete bool
	}{{refused, true}, {refused, true}, {unanswered, false}, {unanswered, false}, {refused, true}, {refused, true}} {
		tr.say(look.found, look.complete)
	}
	if n := strings.Count(said.text.String(), "msg=refused"); n != 1 {
		t.Errorf("it is told %d times:\n%s", n, said.text.String())
	}
}
