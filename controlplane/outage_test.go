package controlplane

// What controllers ask when nothing happens, and what becomes of them when nothing answers.

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"
)

// TestIdleControllersDoNotList: in five minutes in which nothing but heartbeats happens, no
// controller lists anything.
func TestIdleControllersDoNotList(t *testing.T) {
	cert, key := authority(t)
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, cert, key, "a/a1", "b/b1", "c/c1")
		l := p.start()
		defer l.stop()
		<-l.started
		p.until(time.Minute)
		p.client.ClearActions()
		p.until(6 * time.Minute)
		for _, a := range p.client.Actions() {
			if a.GetVerb() == "list" {
				t.Errorf("%s of %s", a.GetVerb(), a.GetResource().Resource)
			}
		}
	})
}

// TestOutage: while no request is answered for a minute a node dies. Its pod goes, no other
// does, and no controller has ended.
func TestOutage(t *testing.T) {
	cert, key := authority(t)
	synctest.Test(t, func(t *testing.T) {
		p := newPlant(t, cert, key, "a/a1", "b/b1", "c/c1")
		o := p.outage()
		l := p.start()
		defer l.stop()
		<-l.started
		p.until(time.Minute)
		o.begin()
		p.until(90 * time.Second)
		p.cutOff("a1")
		p.until(2 * time.Minute)
		o.end()
		p.until(15 * time.Minute)
		if gone := p.evicted(); len(gone) != 1 || gone["a1"] == 0 {
			t.Errorf("evicted are %v", gone)
		}
		for _, e := range l.entries {
			if n := testutil.ToFloat64(l.metrics.restarts.WithLabelValues(e.name)); n != 0 {
				t.Errorf("%s was started %v times again", e.name, n)
			}
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		if o.refused < 10 {
			t.Errorf("%d requests failed", o.refused)
		}
	})
}

// An outage is of all that the controllers ask. Nodes go on.
type outage struct {
	mu      sync.Mutex // guards the following
	on      bool
	refused int
	watches []watch.Interface
}

// outage prepares one, which begins later.
func (p *plant) outage() *outage {
	o := &outage{}
	p.client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		err := o.refuseLocked()
		return err != nil, nil, err
	})
	p.client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		if err := o.refuseLocked(); err != nil {
			return true, nil, err
		}
		var opts metav1.ListOptions
		if w, ok := a.(clienttesting.WatchActionImpl); ok {
			opts = w.ListOptions
		}
		w, err := p.server.Watch(a.GetResource(), a.GetNamespace(), opts)
		o.watches = append(o.watches, w)
		return true, w, err
	})
	return o
}

func (o *outage) refuseLocked() error {
	if !o.on {
		return nil
	}
	o.refused++
	return errors.New("the API server does not answer")
}

// begin ends all watches, and has requests fail.
func (o *outage) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.on = true
	for _, w := range o.watches {
		w.Stop()
	}
	o.watches = nil
}

func (o *outage) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.on = false
}
