package statuspage

// Tests of the rows: what viewers are told, and what nodes cannot do to it.

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/auth"
	"github.com/hawser-project/hawser/controlplane/evidence"
)

// A source has the sessions that a test says.
type source struct {
	mu       sync.Mutex // guards the following
	sessions map[string]evidence.Session
}

func (s *source) Observe(node string) (evidence.Session, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.sessions[node]
	return o, ok
}

func (*source) Follow(ctx context.Context, _ func([]string)) error {
	<-ctx.Done()
	return nil
}

func (*source) Samples() []Sample { return nil }

func (*source) Evictions() (Evictions, bool) { return Evictions{}, false }

func newTestPage() (*Page, *source) {
	s := &source{sessions: map[string]evidence.Session{}}
	return New(Config{Source: s, Audited: true}), s
}

// testNode is one whose conditions Ready, TunnelConnected and DataPathReady are as given.
func testNode(name, site string, is ...corev1.ConditionStatus) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{auth.SiteLabel: site}}}
	types := []corev1.NodeConditionType{corev1.NodeReady, evidence.TunnelConnected, evidence.DataPathReady}
	for i, s := range is {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: types[i], Status: s, Reason: "Because", Message: "of this", LastTransitionTime: metav1.Unix(1_000, 0),
		})
	}
	return n
}

const (
	yes     = corev1.ConditionTrue
	no      = corev1.ConditionFalse
	unknown = corev1.ConditionUnknown
)

// news is what a viewer is told: rows as NAME:READY, and what is gone.
func (v *viewer) told() (rows []string, m *message) {
	m = v.news()
	v.started = true
	for i := range m.Rows {
		rows = append(rows, m.Rows[i].Node+":"+m.Rows[i].Ready.Status)
	}
	return rows, m
}

func TestViewerIsToldWhatChanged(t *testing.T) {
	p, _ := newTestPage()
	v := &viewer{page: p}
	p.set(testNode("a", "x", yes, yes, yes))
	p.set(testNode("b", "x", unknown))
	rows, m := v.told()
	if !slices.Equal(rows, []string{"a:True", "b:Unknown"}) || !m.Reset || m.Nodes != 2 {
		t.Fatalf("at first %v, %+v", rows, m)
	}
	if r := m.Rows[0]; r.Ready != (health{Status: "True", Since: 1000}) || r.Site != "site x" || r.Streams != -1 {
		t.Errorf("a is %+v", r)
	}
	if r := m.Rows[1]; r.Ready.Why != "Because: of this" || r.Tunnel != (health{}) {
		t.Errorf("b is %+v", r)
	}
	p.set(testNode("a", "x", yes, yes, yes)) // says nothing new
	if rows, m = v.told(); len(rows) > 0 || m.Reset {
		t.Errorf("nothing changed, and %v", rows)
	}
	p.set(testNode("a", "x", no, yes, yes))
	p.set(testNode("c", "", yes))
	p.remove("b")
	p.remove("never-there")
	rows, m = v.told()
	if !slices.Equal(rows, []string{"a:False", "c:True"}) || !slices.Equal(m.Gone, []uint64{2}) || m.Nodes != 2 {
		t.Errorf("then %v, gone %v of %d", rows, m.Gone, m.Nodes)
	}
	p.set(testNode("b", "x", yes))
	if rows, m = v.told(); !slices.Equal(rows, []string{"b:True"}) || m.Rows[0].ID == 2 {
		t.Errorf("another b is %v", m.Rows)
	}
}

// A viewer that has missed more than is remembered begins anew, and what is remembered is
// bounded.
func TestGoneIsBounded(t *testing.T) {
	p, _ := newTestPage()
	late, v := &viewer{page: p}, &viewer{page: p}
	p.set(testNode("stays", "", yes))
	late.told()
	v.told()
	for i := range 3 * maxGone {
		name := fmt.Sprint(i)
		p.set(testNode(name, "", yes))
		p.remove(name)
		if _, m := v.told(); m.Reset {
			t.Fatal("a viewer who is in time begins anew")
		}
	}
	if len(p.gone) > maxGone || len(p.rows) != 1 {
		t.Errorf("%d nodes are remembered that are no more, and %d that are", len(p.gone), len(p.rows))
	}
	if rows, m := late.told(); !m.Reset || !slices.Equal(rows, []string{"stays:True"}) || len(m.Gone) > 0 {
		t.Errorf("one who is late is told %v, %v", rows, m.Gone)
	}
}

func TestFreezes(t *testing.T) {
	p, _ := newTestPage()
	v := &viewer{page: p}
	p.Decide(true)
	p.Freeze("a", "SiteLostNetwork", "all 2 nodes of site x fell silent together at 2026-01-01T10:00:00Z; pods are kept", time.Date(2026, 1, 1, 11, 0, 0, 0, time.UTC))
	p.Freeze("b", "ServerLostNetwork", "no end is said", time.Time{})
	p.set(testNode("a", "x", unknown)) // the Node comes later
	p.set(testNode("b", "x", yes))
	_, m := v.told()
	if f := m.Rows[0].Frozen; !m.Decides || f.Reason != "SiteLostNetwork" || f.Until != time.Date(2026, 1, 1, 11, 0, 0, 0, time.UTC).Unix() {
		t.Errorf("a is frozen like %+v", f)
	}
	if f := m.Rows[1].Frozen; f != (freeze{}) {
		t.Errorf("b is heard and frozen like %+v", f)
	}
	p.set(testNode("b", "x", unknown))
	if _, m = v.told(); len(m.Rows) != 1 || m.Rows[0].Frozen != (freeze{Reason: "ServerLostNetwork", Message: "no end is said"}) {
		t.Errorf("b falls silent: %+v", m.Rows)
	}
	p.Freeze("a", "", "", time.Time{})
	if _, m = v.told(); len(m.Rows) != 1 || m.Rows[0].Frozen != (freeze{}) {
		t.Errorf("a is evicted from: %+v", m.Rows)
	}
	p.Decide(false) // another server leads
	if _, m = v.told(); m.Decides || len(m.Rows) != 1 || m.Rows[0].Frozen != (freeze{}) {
		t.Errorf("nothing is known of freezes any more: %+v", m)
	}
	gone := testNode("a", "x", unknown)
	gone.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute, TimeAdded: &metav1.Time{Time: time.Unix(2_000, 0)}}}
	p.set(gone)
	if _, m = v.told(); len(m.Rows) != 1 || m.Rows[0].Evicting != 2000 {
		t.Errorf("a has the taint: %+v", m.Rows)
	}
}

// TestFreezesOfAnotherServer: a page shows what the server that decides says, who that is and
// since when it is known, and its own server's decisions instead once it decides.
func TestFreezesOfAnotherServer(t *testing.T) {
	p, _ := newTestPage()
	v := &viewer{page: p}
	p.set(testNode("a", "x", unknown))
	p.set(testNode("b", "x", yes))
	until := time.Date(2026, 1, 1, 11, 0, 0, 0, time.UTC)
	p.hear(Evictions{Server: "two", At: time.Unix(7_000, 0), Frozen: []Freeze{
		{"a", "SiteLostNetwork" + strings.Repeat("<b>", 1<<20), until}, {Node: "b", Reason: "SiteLostNetwork"}, {Node: "no Node", Reason: "x"},
	}}, true)
	_, m := v.told()
	if m.decision != (decision{true, "two", 7_000}) {
		t.Errorf("who decides is shown as %+v", m.decision)
	}
	if f := m.Rows[0].Frozen; !strings.HasPrefix(f.Reason, "SiteLostNetwork") || len(f.Reason) > 2*maxWord || f.Until != until.Unix() {
		t.Errorf("a is frozen like %+v", f)
	}
	if f := m.Rows[1].Frozen; f != (freeze{}) || len(p.freezes) != 2 {
		t.Errorf("b is heard and frozen like %+v; %d freezes are kept", f, len(p.freezes))
	}
	if _, yes := p.Frozen(); yes {
		t.Error("what another server said is told on")
	}
	p.hear(Evictions{Server: "two", At: time.Unix(7_010, 0)}, true)
	if _, m = v.told(); m.Decided != 7_010 || len(m.Rows) != 1 || m.Rows[0].Frozen != (freeze{}) {
		t.Errorf("a is evicted from: %+v", m)
	}
	p.Decide(true)
	p.Freeze("a", "ServerLostNetwork", "", until)
	p.hear(Evictions{Server: "two", Frozen: []Freeze{{Node: "a", Reason: "SiteLostNetwork"}}}, true)
	if _, m = v.told(); m.decision != own || m.Rows[0].Frozen.Reason != "ServerLostNetwork" {
		t.Errorf("this server decides: %+v", m)
	}
	if all, yes := p.Frozen(); !yes || !slices.EqualFunc(all, []Freeze{{"a", "ServerLostNetwork", until}}, func(a, b Freeze) bool {
		return a.Node == b.Node && a.Reason == b.Reason && a.Until.Equal(b.Until)
	}) {
		t.Errorf("other servers are told %v, %v", all, yes)
	}
	p.Decide(false)
	p.hear(Evictions{}, false)
	if _, m = v.told(); m.decision != (decision{}) || m.Rows[0].Frozen != (freeze{}) {
		t.Errorf("no server decides: %+v", m)
	}
}

func TestCutsAndSamples(t *testing.T) {
	p, s := newTestPage()
	v := &viewer{page: p}
	lost := evidence.Change{At: time.Unix(5_000, 0), State: evidence.Parked, Cause: evidence.Silent, Err: "read: timeout"}
	s.sessions["a"] = evidence.Session{Changes: []evidence.Change{lost, {At: time.Unix(6_000, 0), State: evidence.Attached}}}
	p.set(testNode("a", "x", yes))
	p.set(testNode("b", "x", yes))
	p.take([]Sample{{"a", 1500 * time.Microsecond, 3}, {"no Node", time.Second, 1}})
	_, m := v.told()
	if r := m.Rows[0]; r.Cut != (cut{5000, "Silent: read: timeout"}) || !slices.Equal(r.RTTs, []uint32{1500}) || r.Streams != 3 {
		t.Errorf("a is %+v", r)
	}
	if r := m.Rows[1]; r.Cut != (cut{}) || !slices.Equal(r.RTTs, []uint32{0}) || r.Streams != -1 {
		t.Errorf("b is %+v", r)
	}
	p.take([]Sample{{"a", 0, 1}, {"a", 2 * time.Millisecond, 4}, {"a", time.Hour, 0}}) // with three servers
	if rows, m := v.told(); len(rows) > 0 || !slices.Equal(m.Live, []int64{1, 2000, 5}) {
		t.Errorf("then %v, %v", rows, m.Live)
	}
	lost.Cause, lost.Err = evidence.Left, ""
	s.sessions["a"] = evidence.Session{Changes: []evidence.Change{lost}}
	p.cut([]string{"a", "unknown"})
	if _, m = v.told(); len(m.Rows) != 1 || m.Rows[0].Cut.Why != "Left" {
		t.Errorf("it says goodbye: %+v", m.Rows)
	}
	for range 2 * samples {
		p.take(nil)
	}
	if _, m = (&viewer{page: p}).told(); len(m.Rows[0].RTTs) != samples || m.Rows[0].Streams != -1 {
		t.Errorf("%d samples of a node are kept, with %d streams", len(m.Rows[0].RTTs), m.Rows[0].Streams)
	}
}

// hostile is a node whose words are long, are no words, or would be markup.
func hostile(name string) *corev1.Node {
	const markup = `<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>`
	n := testNode(name, markup, "<b>yes</b>", no, unknown)
	n.Labels[corev1.LabelTopologyZone] = markup
	for i := range n.Status.Conditions {
		n.Status.Conditions[i].Reason = markup
		n.Status.Conditions[i].Message = markup + "\u202e\x1b[2J\u2066" + strings.Repeat("x", 1<<20)
	}
	for i := range 1000 {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeConditionType(fmt.Sprint(i)), Message: markup})
	}
	return n
}

func TestWordsOfNodesAreBounded(t *testing.T) {
	p, s := newTestPage()
	s.sessions["bad"] = evidence.Session{Changes: []evidence.Change{{State: evidence.Parked, Cause: evidence.Closed, Err: strings.Repeat("\xff\u202e", 1<<20)}}}
	p.set(testNode("good", "x", yes))
	p.set(hostile("bad"))
	_, m := (&viewer{page: p}).told()
	if r := m.Rows[0]; r.Node != "good" || r.Ready.Status != "True" {
		t.Errorf("the other node is %+v", r)
	}
	bad := &m.Rows[1]
	if bad.Ready.Status != "Unknown" || bad.Tunnel.Status != "False" {
		t.Errorf("it is %+v", bad)
	}
	text, err := json.Marshal(bad)
	if err != nil || len(text) > 8<<10 {
		t.Errorf("its row has %d bytes, %v", len(text), err)
	}
	for _, s := range []string{bad.Site, bad.Ready.Why, bad.Tunnel.Why, bad.DataPath.Why, bad.Cut.Why} {
		if n := utf8.RuneCountInString(s); n > maxWord+maxText+16 {
			t.Errorf("a text of %d characters", n)
		}
		if strings.ContainsAny(s, "\u202e\u2066\x1b") {
			t.Errorf("%q is shown", s)
		}
	}
}
