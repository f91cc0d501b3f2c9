package tunnelhealth

// Tests of what conditions hand on to the server after this one.

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-project/hawser/controlplane/evidence"
)

// TestLastWordIsKept: what a condition says of a node that fell silent, and when, is
// what the server after this one recalls, and after its start goes on to say.
func TestLastWordIsKept(t *testing.T) {
	at := time.Date(2026, 11, 22, 14, 2, 11, 0, time.UTC)
	last, now := at.Add(-20*time.Second), metav1.NewTime(at.Add(time.Second))
	for _, tc := range []struct {
		state evidence.State
		cause evidence.Cause
		kept  bool
	}{
		{evidence.Parked, evidence.Silent, true},
		{evidence.Detached, evidence.Silent, true},
		{evidence.Detached, evidence.Closed, false},
		{evidence.Detached, evidence.Drained, false},
		{evidence.Attached, "", false},
	} {
		s := evidence.Session{Change: evidence.Change{State: tc.state, Cause: tc.cause, At: at, Heard: last}}
		n := &corev1.Node{}
		n.Status.Conditions = differing(n, connected(&s, 0), now)
		for _, when := range []string{"written", "after a restart", "after another"} {
			if got, ok := evidence.Silenced(n); ok != tc.kept || ok && !got.Equal(last) {
				t.Errorf("%s %s, %s: last word %v %v", tc.state, tc.cause, when, got, ok)
			}
			c := condition(n, evidence.TunnelConnected)
			if when != "written" && (strings.HasSuffix(c.Reason, LinkSilent) != tc.kept || strings.HasPrefix(c.Reason, ParkedPrefix) || c.Status != corev1.ConditionFalse) {
				t.Errorf("%s %s, %s: %s %s", tc.state, tc.cause, when, c.Status, c.Reason)
			}
			now = metav1.NewTime(now.Add(time.Minute))
			if changed := differing(n, missing(n, now.Time), now); len(changed) > 0 {
				n.Status.Conditions = changed
			}
		}
	}
}
