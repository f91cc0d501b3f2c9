package statuspage

// Tests of what is shown in an outage: of a node, of its connection, and of the server.

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/hawser-project/hawser/controlplane/evidence"
)

// The last cut is when the connection was lost, not when the wait for another one was over.
func TestCutIsTheLoss(t *testing.T) {
	t1 := time.Unix(5_000, 0)
	changes := []evidence.Change{
		{At: t1.Add(-time.Hour), State: evidence.Parked, Cause: evidence.Closed},
		{At: t1.Add(-time.Minute), State: evidence.Attached},
		{At: t1, State: evidence.Parked, Cause: evidence.Silent, Err: "read: timeout"},
		{At: t1.Add(time.Minute), State: evidence.Detached, Cause: evidence.Failed, Err: "the wait is over"},
	}
	want := cut{5_000, "Silent: read: timeout"}
	for n := 3; n <= len(changes); n++ {
		if got := cutOf(&evidence.Session{Changes: changes[:n]}); got != want {
			t.Errorf("after %d changes it is %+v", n, got)
		}
	}
	if got := cutOf(&evidence.Session{Changes: append(changes, evidence.Change{State: evidence.Attached})}); got != want {
		t.Errorf("once it is back it is %+v", got)
	}
	if got := cutOf(&evidence.Session{Changes: changes[2:]}); got != want {
		t.Errorf("where no more is known it is %+v", got)
	}
}

// What a Node says of its tunnel may be of before the server's start.
func TestNodesThatAreNotBack(t *testing.T) {
	p, s := newTestPage()
	v := &viewer{page: p}
	away := func() bool {
		_, m := v.told()
		if len(m.Rows) != 1 {
			t.Fatalf("there is no news: %+v", m)
		}
		return m.Rows[0].Away
	}
	s.sessions["b"] = evidence.Session{Change: evidence.Change{State: evidence.Attached}}
	p.set(testNode("b", "", yes, yes, yes))
	if away() {
		t.Error("a node with a session is away")
	}
	p.set(testNode("a", "", yes, yes, yes))
	if !away() {
		t.Error("a node without a session is not away")
	}
	p.set(testNode("a", "", yes, no, unknown))
	if away() {
		t.Error("a node is away whose condition says that it has no tunnel")
	}
	p.set(testNode("a", "", yes, yes, yes))
	s.sessions["a"] = evidence.Session{}
	p.cut([]string{"a"})
	if away() {
		t.Error("a node that is back is away")
	}
	delete(s.sessions, "a") // it was with a server that is gone, which nobody tells
	if got := p.take(nil); len(got) != 2 {
		t.Errorf("of the nodes without a sample, %v are looked at", got)
	}
	p.cut(p.take(nil))
	if !away() {
		t.Error("a node whose server is gone is not away")
	}
	p.take([]Sample{{Node: "a"}}) // its session came while it was looked for
	if away() {
		t.Error("a node with a session that is measured is away")
	}
	p.set(testNode("c", "", yes)) // has no tunnel
	if away() {
		t.Error("a node without a tunnel is away")
	}
}

// Who cannot be heard may have the session.
func TestNodesOfServersThatCannotBeHeard(t *testing.T) {
	p := New(Config{Source: new(unheard)})
	p.set(testNode("a", "", yes, yes, yes))
	if _, m := (&viewer{page: p}).told(); m.Rows[0].Away {
		t.Error("a node is away that may be with another server")
	}
}

type unheard struct{ source }

func (*unheard) Observe(string) (evidence.Session, bool) {
	return evidence.Session{Unheard: []string{"other"}}, false
}

// A server that has just started says nothing before it knows all nodes: they would look deleted.
func TestNothingIsSaidBeforeAllNodesAreThere(t *testing.T) {
	p, _ := newTestPage()
	p.look = time.Millisecond
	reads := make(chan struct{})
	client := fake.NewClientset(testNode("a", "", yes), testNode("b", "", yes))
	client.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
		<-reads
		return false, nil, nil
	})
	factory := informers.NewSharedInformerFactory(client, 0)
	if err := p.Use(factory.Core().V1().Nodes().Informer()); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	w := httptest.NewRecorder()
	v := &viewer{page: p, out: &out, control: http.NewResponseController(deadlines{w})}
	if err := v.write(); err != nil || out.Len() > 0 {
		t.Errorf("it says %q, %v", &out, err)
	}
	factory.Start(t.Context().Done())
	close(reads)
	for !p.synced() {
		<-time.After(time.Millisecond)
	}
	if err := v.write(); err != nil || !strings.Contains(out.String(), `"nodes":2`) {
		t.Errorf("then it says %q, %v", &out, err)
	}
}

// deadlines is a ResponseWriter that has no deadlines, and does not mind.
type deadlines struct{ *httptest.ResponseRecorder }

func (deadlines) SetWriteDeadline(time.Time) error { return nil }

func TestBrowserOutage(t *testing.T) {
	t.Parallel()
	p, s := newTestPage()
	p.look = 20 * time.Millisecond
	p.Decide(true)
	now := time.Now()
	s.sessions["parked"] = evidence.Session{Changes: []evidence.Change{{At: now, State: evidence.Parked, Cause: evidence.Silent, Err: "no route"}}}
	p.set(testNode("away", "x", yes, yes, yes))
	p.set(testNode("parked", "x", unknown, no, unknown))
	p.Freeze("parked", evidence.SiteLostNetwork, "why", now.Add(48*time.Hour))
	p.take([]Sample{{Node: "parked", Streams: 1}})
	var down atomic.Bool
	b := newBrowserOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() { // the browser would complain of no answer, and of one with an error
			_, _ = io.WriteString(w, "no JSON\n")
			return
		}
		p.Handler(testPath).ServeHTTP(w, r)
	}))
	cells := func(node string) string {
		return `[...document.querySelectorAll("#rows tr:not(.space)")].find((tr) => tr.textContent.startsWith("` + node + `"))?.cells`
	}
	b.until(cells("away") + `?.[3].textContent === "? not back yet" && ` + cells("away") + `[4].textContent === "? not back yet"`)
	b.until(`document.querySelector("#summary").textContent.includes("2 without a tunnel connection")`)
	until := run[string](b, cells("parked")+`[8].textContent`)
	if day := run[string](b, `new Intl.DateTimeFormat(undefined, { dateStyle: "short" }).format(`+strconv.FormatInt(now.Add(48*time.Hour).UnixMilli(), 10)+`)`); until[:len("frozen until "+day)] != "frozen until "+day {
		t.Errorf("it says %q, without the day %s", until, day)
	}
	b.do(write("#filter", "NO ROUTE"))
	b.until(`document.querySelector("#shown").textContent === "1 of 2 nodes"`)
	b.do(click(`#rows tr:not(.space) button`))
	b.until(`document.querySelector("#facts").textContent.includes("waits for another connection") && document.querySelector("#gone").hidden`)
	p.remove("parked")
	b.until(`!document.querySelector("#gone").hidden && document.querySelector("#gone").textContent.includes("deleted") && document.querySelector("#facts").textContent.includes("no route")`)
	b.picture("deleted")
	b.do(chromedp.KeyEvent(kb.Escape))
	down.Store(true)
	close(p.closed)
	b.until(`document.querySelector("#link").textContent.startsWith("Not connected since " + new Intl.DateTimeFormat(undefined, { dateStyle: "short" }).format())`)
}
