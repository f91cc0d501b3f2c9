package leader

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCheck(t *testing.T) {
	s := time.Second
	for _, tc := range []struct {
		name   string
		config Config
		want   string
	}{
		{"defaults", Config{}, ""},
		{"fast", Config{LeaseDuration: 3 * s, RenewDeadline: 2 * s, RetryPeriod: s / 2}, ""},
		{"negative", Config{RetryPeriod: -s}, "must be positive"},
		{"too short", Config{LeaseDuration: s / 2, RenewDeadline: s / 4, RetryPeriod: s / 10}, "--leader-elect-lease-duration 500ms"},
		{"stops within a second", Config{LeaseDuration: 3*s + s/2, RenewDeadline: 3 * s, RetryPeriod: s}, "--leader-elect-renew-deadline 3s must be shorter"},
		{"stops too late", Config{LeaseDuration: 5 * s}, "--leader-elect-renew-deadline 10s must be shorter"},
		{"tries once", Config{RetryPeriod: 9 * s}, "--leader-elect-retry-period 9s must be shorter"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.config.Check()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// A candidate is an Elector that runs, with what it leads.
type candidate struct {
	*Elector
	leading atomic.Bool
	terms   atomic.Int32
	quit    context.CancelFunc
	done    chan error
}

// A race is a cluster with its candidates. Only one may ever lead.
type race struct {
	t       *testing.T
	client  *fake.Clientset
	cut     atomic.Pointer[string] // the identity whose requests fail
	leaders atomic.Int32
}

func newRace(t *testing.T) *race {
	return &race{t: t, client: fake.NewClientset()}
}

// enter starts a candidate whose controllers take a while to stop.
func (r *race) enter(identity string, lingers time.Duration) *candidate {
	r.t.Helper()
	client := fake.NewClientset()
	client.PrependReactor("*", "leases", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if who := r.cut.Load(); who != nil && *who == identity {
			return true, nil, errors.New("unreachable")
		}
		obj, err := r.client.Invokes(a, &coordinationv1.Lease{})
		return true, obj, err
	})
	client.PrependWatchReactor("leases", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := r.client.InvokesWatch(a)
		return true, w, err
	})
	e, err := New(Config{Client: client, Identity: identity, Log: slog.New(slog.NewTextHandler(r.t.Output(), nil)).With("candidate", identity)})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, quit := context.WithCancel(context.WithoutCancel(r.t.Context()))
	c := &candidate{Elector: e, quit: quit, done: make(chan error, 1)}
	go func() {
		c.done <- e.Run(ctx, func(ctx context.Context) error {
			if n := r.leaders.Add(1); n != 1 {
				r.t.Errorf("%d leaders at once", n)
			}
			c.leading.Store(true)
			c.terms.Add(1)
			<-ctx.Done()
			<-time.After(lingers)
			c.leading.Store(false)
			r.leaders.Add(-1)
			return nil
		})
	}()
	return c
}

func (r *race) lease() *coordinationv1.Lease {
	r.t.Helper()
	l, err := r.client.CoordinationV1().Leases(DefaultNamespace).Get(r.t.Context(), DefaultName, metav1.GetOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

func (r *race) holder() string {
	r.t.Helper()
	l := r.lease()
	if l.Spec.HolderIdentity == nil {
		return ""
	}
	return *l.Spec.HolderIdentity
}

func (c *candidate) stop(t *testing.T) {
	t.Helper()
	c.quit()
	if err := <-c.done; err != nil {
		t.Error(err)
	}
}

// pass lets fake time pass and what it sets off settle.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func TestStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRace(t)
		a := r.enter("a", time.Second)
		pass(time.Second)
		if !a.leading.Load() {
			t.Fatal("nobody leads")
		}
		b := r.enter("b", 0)
		pass(time.Minute)
		select {
		case <-b.Follows():
		default:
			t.Error("b does not know of a")
		}
		if b.leading.Load() || r.holder() != "a" {
			t.Fatalf("b leads: %v; %q holds the lease", b.leading.Load(), r.holder())
		}
		began := time.Now()
		a.stop(t)
		if d := time.Since(began); d < time.Second {
			t.Errorf("stopped after %v, before what it led had", d)
		}
		if r.holder() == "a" {
			t.Error("a did not give the lease back")
		}
		pass(time.Second)
		if !b.leading.Load() {
			t.Error("b did not take over from a leader that stopped")
		}
		b.stop(t)
	})
}

func TestCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRace(t)
		a := r.enter("a", 3*time.Second-time.Millisecond)
		pass(time.Second)
		b := r.enter("b", 0)
		pass(time.Minute)
		who, renewed := "a", r.lease().Spec.RenewTime.Time
		r.cut.Store(&who)
		// a stops at most 12 s after its last renewal and lingers for 3; b takes over
		// after 15. The check that they do not overlap is in enter.
		pass(15*time.Second + time.Millisecond)
		if d := r.lease().Spec.AcquireTime.Sub(renewed); d > 15*time.Second {
			t.Errorf("taken over %v after the last renewal", d)
		}
		if a.leading.Load() || !b.leading.Load() || r.holder() != "b" {
			t.Errorf("a leads: %v, b leads: %v, %q holds the lease", a.leading.Load(), b.leading.Load(), r.holder())
		}
		r.cut.Store(nil)
		pass(3 * time.Minute) // a's watch has backed off
		if a.leading.Load() || a.terms.Load() != 1 {
			t.Error("a leads again although b does")
		}
		b.stop(t)
		pass(time.Second)
		if !a.leading.Load() || a.terms.Load() != 2 {
			t.Error("a does not lead again after b")
		}
		a.stop(t)
	})
}

// TestCrashed: who comes back by the same name takes its own lease at once.
func TestCrashed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRace(t)
		now := metav1.NowMicro()
		name, seconds, transitions := "a", int32(15), int32(3)
		_, err := r.client.CoordinationV1().Leases(DefaultNamespace).Create(t.Context(), &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Namespace: DefaultNamespace, Name: DefaultName},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: &name, LeaseDurationSeconds: &seconds, LeaseTransitions: &transitions, AcquireTime: &now, RenewTime: &now,
			},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b := r.enter("b", 0)
		a := r.enter("a", 0)
		pass(time.Second)
		if !a.leading.Load() || b.leading.Load() {
			t.Error("a does not have its own lease")
		}
		b.stop(t)
		a.stop(t)
	})
}

func TestLeadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRace(t)
		e, err := New(Config{Client: r.client, Identity: "a"})
		if err != nil {
			t.Fatal(err)
		}
		bad := errors.New("cannot be made")
		if err := e.Run(t.Context(), func(context.Context) error { return bad }); !errors.Is(err, bad) {
			t.Errorf("got %v", err)
		}
		if r.holder() != "" {
			t.Error("the lease was not given back")
		}
	})
}

// TestForbidden: a candidate that may not write the Lease says so, once.
func TestForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		client.PrependReactor("create", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, apierrors.NewForbidden(coordinationv1.Resource("leases"), DefaultName, errors.New("no rule allows it"))
		})
		var told bytes.Buffer
		e, err := New(Config{Client: client, Identity: "a", Log: slog.New(slog.NewTextHandler(&told, nil))})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = e.Run(ctx, func(context.Context) error {
			t.Error("leads without a lease")
			return nil
		})
		if n := strings.Count(told.String(), "no rule allows it"); err != nil || n != 1 {
			t.Errorf("said %d times, %v:\n%s", n, err, told.String())
		}
	})
}

// A rival writes the Lease as its holder, with no regard to who held it.
func rival(t *testing.T, client *fake.Clientset) {
	t.Helper()
	now, name, seconds := metav1.NowMicro(), "b", int32(15)
	err := client.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: DefaultNamespace, Name: DefaultName},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, AcquireTime: &now, RenewTime: &now},
	}, DefaultNamespace)
	if err != nil {
		t.Error(err)
	}
}

// TestAnotherHolds: a leader that finds the Lease in another's hands, as one that was stopped
// does, stops at its next try and says who leads.
func TestAnotherHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var taken atomic.Bool
		client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			return taken.Load(), nil, apierrors.NewConflict(coordinationv1.Resource("leases"), DefaultName, errors.New("another version"))
		})
		ended, told := follows(t, client, func() {
			<-time.After(time.Minute + DefaultRetryPeriod/4) // between two renewals
			rival(t, client)
			taken.Store(true)
		})
		if ended > DefaultRetryPeriod {
			t.Errorf("led for %v beside another", ended)
		}
		if !strings.Contains(told, "b holds the lease") || strings.Contains(told, "nil") {
			t.Errorf("said:\n%s", told)
		}
	})
}

// TestNoTimeToRenew: a term is over LeaseDuration after its last renewal was begun, whatever
// a request of it waits for.
func TestNoTimeToRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		var stuck atomic.Bool
		client.PrependReactor("update", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
			if stuck.Load() {
				<-time.After(time.Minute)
			}
			return false, nil, nil
		})
		ended, told := follows(t, client, func() {
			<-time.After(time.Minute + DefaultRetryPeriod/4) // as above
			stuck.Store(true)
		})
		if ended > DefaultLeaseDuration {
			t.Errorf("led for %v without a renewal", ended)
		}
		if !strings.Contains(told, "for 15s") {
			t.Errorf("said:\n%s", told)
		}
	})
}

// follows runs a candidate that leads before lose is called, and returns how long it led
// after that, and its log.
func follows(t *testing.T, client *fake.Clientset, lose func()) (led time.Duration, told string) {
	t.Helper()
	var text bytes.Buffer
	e, err := New(Config{Client: client, Identity: "a", Log: slog.New(slog.NewTextHandler(&text, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, quit := context.WithCancel(t.Context())
	err = e.Run(ctx, func(ctx context.Context) error {
		lose()
		began := time.Now()
		select {
		case <-ctx.Done():
		case <-time.After(time.Hour):
		}
		led = time.Since(began)
		quit()
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return led, text.String()
}
