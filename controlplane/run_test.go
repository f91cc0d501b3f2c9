package controlplane

// Tests of terms: of controllers that run while their process leads.

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
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
	for _, message := range []string{"first became leader", "first stopped leading", "second became leader"} {
		workload{c}.becomes(message+" kube-controller-manager", func() string {
			events, err := c.admin.CoreV1().Events(leader.DefaultNamespace).List(t.Context(), metav1.ListOptions{
				FieldSelector: "reason=LeaderElection,involvedObject.kind=Lease,involvedObject.name=" + leader.DefaultName,
			})
			if err != nil {
				return err.Error()
			}
			var told []string
			for i := range events.Items {
				e := &events.Items[i]
				if e.Message == message {
					return e.Message + " " + e.Source.Component
				}
				told = append(told, e.Message)
			}
			return fmt.Sprintf("%q", told)
		})
	}
}

func TestElectionRefused(t *testing.T) {
	_, err := New(Config{Client: &rest.Config{}, Leader: &leader.Config{LeaseDuration: time.Second}})
	if err == nil || !strings.Contains(err.Error(), "--leader-elect-renew-deadline") {
		t.Errorf("got %v", err)
	}
}

// TestNothingToLead: a process that was told to run nothing is ready, asks nobody
// for anything, and leaves the lease to others.
func TestNothingToLead(t *testing.T) {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s", r.Method, r.URL)
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer api.Close()
	for name, leads := range map[string]*leader.Config{"elected": {Identity: "x"}, "alone": nil} {
		t.Run(name, func(t *testing.T) {
			p, err := New(Config{Client: &rest.Config{Host: api.URL}, Enabled: []string{}, Leader: leads})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- p.Run(ctx) }()
			<-p.Ready()
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
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
