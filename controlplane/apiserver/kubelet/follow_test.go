package kubelet

// Tests of logs that are followed past the loss of sessions.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
	"k8s.io/utils/ptr"
)

// A loggedLine is a line of a container's log, and the time of its first part.
type loggedLine struct {
	at   time.Time
	text string
}

// someLines are lines as two streams of a container write them: some at one time, some in another
// order than their times, some empty, some that begin with a time. With ties, some in a row have
// one time.
func someLines(r *rand.Rand, n int, ties bool) []loggedLine {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := now
	var lines []loggedLine
	for range n {
		now = now.Add(time.Duration(r.Int64N([]int64{1, 1e9, 4e9}[r.IntN(3)])))
		if !ties || r.IntN(3) > 0 {
			at = now.Add(-time.Duration(r.Int64N(5e8)))
		}
		text := strings.Repeat("x y", r.IntN(20))
		if r.IntN(5) == 0 {
			text = stampOf(at) + " " + text
		}
		lines = append(lines, loggedLine{at, text})
	}
	return lines
}

func stampOf(at time.Time) string { return at.Format("2006-01-02T15:04:05.000000000Z07:00") }

// answer is what a kubelet answers to a query.
func answer(lines []loggedLine, query url.Values) string {
	var since time.Time
	if at := query.Get("sinceTime"); at != "" {
		since, _ = time.Parse(time.RFC3339, at)
	}
	if n := query.Get("tailLines"); n != "" {
		var tail int
		_, _ = fmt.Sscan(n, &tail)
		lines = lines[max(0, len(lines)-tail):]
	}
	var b strings.Builder
	for _, l := range lines {
		if l.at.Before(since) {
			continue
		}
		if query.Get("timestamps") == "true" {
			b.WriteString(stampOf(l.at) + " ")
		}
		b.WriteString(l.text + "\n")
	}
	return b.String()
}

// A brokenBody gives its bytes some at a time and ends with err.
type brokenBody struct {
	r    *rand.Rand
	rest []byte
	err  error
}

func (b *brokenBody) Read(p []byte) (int, error) {
	if len(b.rest) == 0 {
		return 0, b.err
	}
	n := copy(p, b.rest[:1+b.r.IntN(len(b.rest))])
	b.rest = b.rest[n:]
	return n, nil
}

func (b *brokenBody) Close() error { return nil }

// TestFollowedLogIsExact: wherever answers break off, the client gets each byte once.
func TestFollowedLogIsExact(t *testing.T) {
	for seed := range uint64(300) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			stamps, tail, asked := r.IntN(2) == 0, r.IntN(2) == 0, url.Values{}
			lines := someLines(r, 1+r.IntN(30), !tail)
			if tail {
				asked.Set("tailLines", "10")
			}
			wanted := url.Values{"timestamps": {fmt.Sprint(stamps)}, "tailLines": asked["tailLines"]}
			want := answer(lines, wanted)
			asked.Set("timestamps", "true")
			breaks := 1 + r.IntN(20)
			ask := func(_ context.Context, q url.Values) (io.ReadCloser, error) {
				if breaks--; r.IntN(4) == 0 && breaks > 0 {
					return nil, errors.New("no agent is connected")
				}
				all := []byte(answer(lines, q))
				if breaks <= 0 {
					return &brokenBody{r, all, io.EOF}, nil
				}
				return &brokenBody{r, all[:r.IntN(len(all)+1)], io.ErrUnexpectedEOF}, nil
			}
			first := &brokenBody{r: r, err: io.ErrUnexpectedEOF}
			if tail { // a line of it is passed on
				all := answer(lines, asked)
				n := strings.IndexByte(all, '\n') + 1
				first.rest = []byte(all[:n+r.IntN(len(all)-n+1)])
			}
			l := newFollowedLog(t.Context(), asked, stamps, first, ask)
			got, err := io.ReadAll(l)
			if err != nil || string(got) != want {
				t.Fatalf("seed %d: %v\ngot  %q\nwant %q", seed, err, got, want)
			}
			_ = l.Close()
		})
	}
}

// TestFollowedLogFails: what cannot be told without a gap fails.
func TestFollowedLogFails(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	first := stampOf(at) + " one\n" + stampOf(at.Add(time.Second)) + " two\n"
	broken := errors.New("the session has ended")
	for _, tc := range []struct {
		name, again string
		err         error // of asking again
		want        error
		within      time.Duration
	}{
		{"the container is another", stampOf(at.Add(time.Minute)) + " three\n", nil, errLineGone, time.Second},
		{"the log has been removed", "", nil, errLineGone, time.Second},
		{"the line is shorter", stampOf(at.Add(time.Second)) + " t\n", nil, errLineGone, time.Second},
		{"the line is longer", stampOf(at.Add(time.Second)) + " twofold\n", nil, errLineGone, time.Second},
		{"no times", "a line, and another one, that have no times\n", nil, errNoTime, time.Second},
		{"no end of a time", strings.Repeat("2", 100), nil, errNoTime, time.Second},
		{"the pod is gone", "", errPodGone, broken, time.Second},
		{"the node stays away", "", errors.New("no agent is connected"), broken, followAgainFor},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				ask := func(context.Context, url.Values) (io.ReadCloser, error) {
					if tries++; tc.err != nil {
						return nil, tc.err
					}
					return io.NopCloser(strings.NewReader(tc.again)), nil
				}
				body := io.NopCloser(io.MultiReader(strings.NewReader(first), &brokenBody{err: broken}))
				l := newFollowedLog(t.Context(), url.Values{}, false, body, ask)
				began := time.Now()
				got, err := io.ReadAll(l)
				if string(got) != "one\ntwo\n" || !errors.Is(err, tc.want) {
					t.Errorf("got %q, %v; want %v", got, err, tc.want)
				}
				if took := time.Since(began); took > tc.within {
					t.Errorf("took %v", took)
				}
				if tries > 40 {
					t.Errorf("asked %d times", tries)
				}
			})
		})
	}
}

// TestFollowedLogBeginsOnce: a log that begins with the latest lines, or the lines of the latest
// seconds, and of which nothing was passed on, is not asked for again: it would begin later, and
// what was written since would be missing without a word.
func TestFollowedLogBeginsOnce(t *testing.T) {
	for _, option := range []string{"tailLines", "sinceSeconds"} {
		synctest.Test(t, func(t *testing.T) {
			broken := errors.New("the session has ended")
			l := newFollowedLog(t.Context(), url.Values{option: {"5"}}, false, &brokenBody{err: broken},
				func(context.Context, url.Values) (io.ReadCloser, error) {
					return &brokenBody{err: io.EOF}, nil
				})
			if got, err := io.ReadAll(l); len(got) > 0 || !errors.Is(err, broken) {
				t.Errorf("%s: %q, %v", option, got, err)
			}
		})
	}
}

// TestFollowedLogStaysWithItsContainer: a log whose container is started again while no session is
// there goes on with what that container wrote, and ends with it.
func TestFollowedLogStaysWithItsContainer(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	one, fatal := stampOf(at)+" one\n", stampOf(at.Add(100*time.Millisecond))+" fatal\n"
	started := stampOf(at.Add(900*time.Millisecond)) + " started\n"
	for _, tc := range []struct {
		name     string
		first    string            // is passed on before the session is lost
		id       string            // of the first answer
		logs     map[string]string // that the node has after it, by ID
		newest   string            // the ID of the container that runs
		asBefore bool              // whether the node takes no notice of IDs
		want     string
		err      error
	}{
		{name: "nothing was passed on", id: "a", logs: map[string]string{"a": fatal, "b": started}, newest: "b", want: "fatal\n"},
		{name: "a line was passed on", first: one, id: "a", logs: map[string]string{"a": one + fatal, "b": started}, newest: "b", want: "one\nfatal\n"},
		{name: "the next one is silent", first: one, id: "a", logs: map[string]string{"a": one, "b": ""}, newest: "b", want: "one\n"},
		{name: "its log is gone", first: one, id: "a", logs: map[string]string{"b": started}, newest: "b", want: "one\n", err: errLineGone},
		{name: "its log is gone, nothing was passed on", id: "a", logs: map[string]string{"b": started}, newest: "b", err: errLineGone},
		{name: "a node that answers with another", id: "a", logs: map[string]string{"b": started}, newest: "b", asBefore: true, err: errLineGone},
		{name: "a node that names none", logs: map[string]string{"": fatal}, want: "fatal\n"},
		{name: "a name that is too long", id: strings.Repeat("a", 1000), logs: map[string]string{"": fatal}, want: "fatal\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				asked := 0
				s := &logStreamer{follow: func(context.Context) bool { return true }}
				s.Location = &url.URL{Scheme: "http", Host: "node-1", RawQuery: "follow=true&timestamps=true"}
				s.ResponseChecker = genericrest.NewGenericHttpResponseChecker(corev1.Resource("pods/log"), "web")
				s.Transport = roundTripper(func(r *http.Request) (*http.Response, error) {
					if asked++; asked == 1 {
						body := io.MultiReader(strings.NewReader(tc.first), &brokenBody{err: errors.New("session lost")})
						return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Hawser-Container-Id": {tc.id}}, Body: io.NopCloser(body)}, nil
					}
					id := r.URL.Query().Get("containerID")
					if id == "" || tc.asBefore {
						id = tc.newest
					}
					log, ok := tc.logs[id]
					if !ok {
						return &http.Response{StatusCode: http.StatusGone, Body: http.NoBody}, nil
					}
					body := io.ReadCloser(io.NopCloser(strings.NewReader(log)))
					if id != "" && id == tc.newest {
						body = openBody(r.Context(), log)
					}
					return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Hawser-Container-Id": {id}}, Body: body}, nil
				})
				body, _, _, err := s.InputStream(ctx, "", "")
				if err != nil {
					t.Fatal(err)
				}
				got, err := io.ReadAll(body.(*cutLog).body)
				if string(got) != tc.want || !errors.Is(err, tc.err) {
					t.Errorf("got %q, %v, want %q, %v", got, err, tc.want, tc.err)
				}
				_ = body.Close()
			})
		})
	}
}

// openBody is the log so far of a container that runs: it ends with ctx.
func openBody(ctx context.Context, log string) io.ReadCloser {
	r, w := io.Pipe()
	context.AfterFunc(ctx, func() { _ = w.CloseWithError(ctx.Err()) })
	go func() { _, _ = io.WriteString(w, log) }()
	return r
}

// TestFollowedLogIsGivenUp: a client that goes ends the wait for a node.
func TestFollowedLogIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(3*time.Second, cancel)
		l := newFollowedLog(ctx, url.Values{}, false, &brokenBody{err: io.ErrUnexpectedEOF},
			func(context.Context, url.Values) (io.ReadCloser, error) {
				return nil, errors.New("no agent is connected")
			})
		began := time.Now()
		if _, err := l.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

// TestFollowedLogIsLimited: what was passed on before the loss counts towards the limit, times that
// only the API server asked for do not, and the log ends there.
func TestFollowedLogIsLimited(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	log := stampOf(at) + " one\n" + stampOf(at.Add(time.Second)) + " two\n" + stampOf(at.Add(2*time.Second)) + " three\n"
	for limit, want := range map[int64]string{3: "one", 6: "one\ntw", 10: "one\ntwo\nth", 14: "one\ntwo\nthree\n"} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			s := &logStreamer{limit: &limit, follow: func(context.Context) bool { return true }}
			s.Location = &url.URL{Scheme: "http", Host: "node-1", RawQuery: "timestamps=true"}
			s.Transport = roundTripper(func(*http.Request) (*http.Response, error) {
				body := io.Reader(strings.NewReader(log))
				if asked++; asked == 1 {
					body = io.MultiReader(strings.NewReader(log[:len(log)/2]), &brokenBody{err: io.ErrUnexpectedEOF})
				}
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body)}, nil
			})
			body, _, _, err := s.InputStream(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(body)
			if string(got) != want || err != nil {
				t.Errorf("limit %d: got %q, %v, want %q", limit, got, err, want)
			}
			_ = body.Close()
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestLimitIsNotTheKubelets: the kubelet, which is asked for times, is not told of the limit.
func TestLimitIsNotTheKubelets(t *testing.T) {
	b := start(t, func(o *Options) {
		o.Nodes = func(context.Context, string) (*corev1.Node, error) {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}
			n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "node-1"}}
			n.Status.NodeInfo.KubeletVersion = "v1.37.2+hawser"
			return n, nil
		}
	})
	b.kubelet.more <- "2026-01-02T03:04:05Z number 1"
	code, body, _ := b.get(t, http.MethodGet, "/api/v1/namespaces/ns/pods/web/log?follow=true&limitBytes=5")
	if code != http.StatusOK || body != "numbe" {
		t.Errorf("%d %q", code, body)
	}
	b.kubelet.mu.Lock()
	defer b.kubelet.mu.Unlock()
	if want := "GET /containerLogs/ns/web/c?follow=true&timestamps=true"; !slices.Equal(b.kubelet.paths, []string{want}) {
		t.Errorf("the kubelet was asked %q, want %q", b.kubelet.paths, want)
	}
}

// TestWhichLogsGoOn: kubelets that may take no notice of options are asked as the client asked.
func TestWhichLogsGoOn(t *testing.T) {
	node := func(version string) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: version}}}
	}
	own := node("v1.37.2+hawser")
	for i, tc := range []struct {
		o    corev1.PodLogOptions
		n    *corev1.Node
		want bool
	}{
		{corev1.PodLogOptions{Follow: true}, own, true},
		{corev1.PodLogOptions{Follow: true, TailLines: ptr.To[int64](3), SinceTime: ptr.To(metav1.Now())}, own, true},
		{corev1.PodLogOptions{}, own, false},
		{corev1.PodLogOptions{Follow: true, LimitBytes: ptr.To[int64](3)}, own, true},
		{corev1.PodLogOptions{Follow: true}, node("v1.37.2"), false},
	} {
		if got := goesOn(&tc.o, tc.n); got != tc.want {
			t.Errorf("case %d: %v", i, got)
		}
	}
}

// FuzzFollowedLog: whatever a node sends, and wherever it breaks off, no byte is passed on twice
// and none is made up.
func FuzzFollowedLog(f *testing.F) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	f.Add([]byte(stampOf(at)+" one\n"+stampOf(at)+" two\n"), uint16(40))
	f.Add([]byte("no time\n"), uint16(3))
	f.Fuzz(func(t *testing.T, log []byte, at uint16) {
		times := map[string]int{}
		for i, l := range bytes.Split(log, []byte("\n")) {
			stamp, _, _ := bytes.Cut(l, []byte(" "))
			if last, ok := times[string(stamp)]; ok && last != i-1 {
				return // a time that comes back after another is found where it was first
			}
			times[string(stamp)] = i
		}
		var once passedLog
		want, wrong := once.take(nil, log)
		var g passedLog
		i := min(int(at), len(log))
		got, err := g.take(nil, log[:i])
		if err != nil {
			if wrong == nil {
				t.Fatalf("%v of a part, nothing of the whole", err)
			}
			return
		}
		g.rest(url.Values{})
		more, _ := g.take(nil, log)
		if got = slices.Concat(got, more); !bytes.HasPrefix(want, got) && wrong == nil {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}
