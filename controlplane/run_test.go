package controlplane

// Tests of terms: of controllers that run while their process leads.

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/controlplane/leader"
)

// TestTwoManagers: of two sets of controllers for one cluster one acts; the other
// is ready, and takes over.
func TestTwoManagers(t *testing.T) {
	c := startCluster(t)
	c.manage("second")
	leases := c.admin.CoordinationV1().Leases(leader.DefaultNamespace)
	holder := func() string {
		l, err := leases.Get(t.Context(), leader.DefaultName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return *l.Spec.HolderIdentity
	}
	if h := holder(); h != "first" {
		t.Fatalf("%q leads", h)
	}
	c.join(c.token("abcdef", time.Hour), "node-1")
	c.resign()
	// Nobody but controllers signs this node's certificates.
	c.join(c.token("ghijkl", time.Hour), "node-2")
	if h := holder(); h != "second" {
		t.Errorf("%q leads", h)
	}
}

func TestElectionRefused(t *testing.T) {
	_, err := New(Config{Client: &rest.Config{}, Leader: &leader.Config{LeaseDuration: time.Second}})
	if err == nil || !strings.Contains(err.Error(), "--leader-elect-renew-deadline") {
		t.Errorf("got %v", err)
	}
}

// TestScope: what one term has registered the next can register again.
func TestScope(t *testing.T) {
	r := prometheus.NewRegistry()
	for term := range 3 {
		s := &scope{r: r}
		n := prometheus.NewCounter(prometheus.CounterOpts{Name: "n"})
		s.MustRegister(n)
		n.Add(1)
		if got, err := testutil.GatherAndCount(r); err != nil || got != 1 {
			t.Errorf("term %d: %d metrics, %v", term, got, err)
		}
		s.end()
	}
	if got, err := testutil.GatherAndCount(r); err != nil || got != 0 {
		t.Errorf("%d metrics are left, %v", got, err)
	}
	s := &scope{}
	s.MustRegister(prometheus.NewCounter(prometheus.CounterOpts{Name: "n"}))
	s.end()
}
