// The pure parts: pools, classes, what updates keep, who may read without a name.

package apiserver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/randfill"
)

func TestHostAddr(t *testing.T) {
	for _, c := range []struct {
		cidr string
		i    int
		want string
	}{
		{"10.96.0.0/12", 1, "10.96.0.1"},
		{"10.96.0.0/12", 1 << 16, "10.97.0.0"},
		{"10.0.0.0/30", 2, "10.0.0.2"},
		{"10.0.0.0/30", 3, ""}, // broadcast
		{"10.0.0.0/30", 4, ""},
		{"255.255.255.252/30", 5, ""},
		{"0.0.0.0/24", 7, "0.0.0.7"},
		{"fd00::/112", 0xffff, "fd00::ffff"},
		{"fd00::/112", 0x10000, ""},
	} {
		got, ok := hostAddr(netip.MustParsePrefix(c.cidr), c.i)
		if ok != (c.want != "") || ok && got.String() != c.want {
			t.Errorf("%s %d: %v %v", c.cidr, c.i, got, ok)
		}
	}
}

func TestPool(t *testing.T) {
	p := newPool(func(i int) (int, bool) { return 100 + i, i < 5 })
	if p.size != 5 {
		t.Fatalf("size %d", p.size)
	}
	if !p.take(102) || p.take(102) {
		t.Error("102 was not free once")
	}
	var got []int
	for {
		v, ok := p.any()
		if !ok {
			break
		}
		got = append(got, v)
	}
	slices.Sort(got)
	if !slices.Equal(got, []int{100, 101, 103, 104}) {
		t.Errorf("gave %v", got)
	}
	p.release(103)
	if v, ok := p.any(); !ok || v != 103 {
		t.Errorf("gave %d, %v", v, ok)
	}
	if empty := newPool(func(int) (int, bool) { return 0, false }); empty.size != 0 {
		t.Errorf("size of nothing %d", empty.size)
	}
	if v, ok := newPool(func(int) (int, bool) { return 0, false }).any(); ok {
		t.Errorf("nothing gave %d", v)
	}
	if huge := newPool(func(i int) (int, bool) { return i, true }); huge.size != maxPool {
		t.Errorf("size without end %d", huge.size)
	}
}

func TestPodGrace(t *testing.T) {
	mirror := func(owner string) corev1.Pod {
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Annotations:     map[string]string{corev1.MirrorPodAnnotationKey: "hash"},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: owner, Controller: ptr.To(true)}},
			},
			Spec: corev1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: ptr.To[int64](7)},
		}
	}
	for _, c := range []struct {
		name  string
		pod   corev1.Pod
		asked *int64
		want  int64
	}{
		{"no node", corev1.Pod{}, ptr.To[int64](30), 0},
		{"ended well", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}, nil, 0},
		{"ended badly", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}, Status: corev1.PodStatus{Phase: corev1.PodFailed}}, nil, 0},
		{"default", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}, nil, 30},
		{"its own", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: ptr.To[int64](7)}}, nil, 7},
		{"asked", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: ptr.To[int64](7)}}, ptr.To[int64](3), 3},
		{"at once", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}, ptr.To[int64](0), 0},
		{"negative", corev1.Pod{Spec: corev1.PodSpec{NodeName: "n", TerminationGracePeriodSeconds: ptr.To[int64](-5)}}, nil, 1},
		{"its node shows it", mirror("n"), nil, 0},
		{"its node shows it, and it is asked", mirror("n"), ptr.To[int64](3), 0},
		{"another node's", mirror("other"), nil, 7},
	} {
		o := &metav1.DeleteOptions{GracePeriodSeconds: c.asked}
		if !podGrace(&c.pod, o) || *o.GracePeriodSeconds != c.want {
			t.Errorf("%s: %d", c.name, *o.GracePeriodSeconds)
		}
	}
}

func TestIsOpen(t *testing.T) {
	for path, want := range map[string]bool{
		"/healthz": true, "/readyz/etcd": true, "/version": true, "/livez/ping": true,
		"": false, "/": false, "/api": false, "/healthzz": false, "/version/../api": false, "/readyz//x": false, "healthz": false,
	} {
		if isOpen(path) != want {
			t.Errorf("%q", path)
		}
	}
}

// TestEventConversion converts random events there and back.
func TestEventConversion(t *testing.T) {
	f := randfill.NewWithSeed(1).NilChance(0.3).Funcs(
		func(tm *metav1.TypeMeta, _ randfill.Continue) { *tm = metav1.TypeMeta{} },
	)
	for range 200 {
		var in, back corev1.Event
		var out eventsv1.Event
		f.Fill(&in)
		eventFromCore(&in, &out)
		eventToCore(&out, &back)
		if !equality.Semantic.DeepEqual(in, back) {
			t.Fatalf("%+v\nbecame %+v", in, back)
		}
	}
}

// TestTable checks the table itself: names, hooks that need fields, and that
// every kind is one the scheme knows under both versions.
func TestTable(t *testing.T) {
	rows := resources()
	scheme, err := newScheme(rows)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i := range rows {
		r := &rows[i]
		if key := r.gr().String(); seen[key] {
			t.Errorf("%s twice", key)
		} else {
			seen[key] = true
		}
		for _, short := range r.short {
			if seen["short "+short] {
				t.Errorf("short name %s twice", short)
			}
			seen["short "+short] = true
		}
		if !scheme.Recognizes(r.gvk()) || !scheme.Recognizes(r.gvk().GroupKind().WithVersion(runtime.APIVersionInternal)) {
			t.Errorf("%s: not in the scheme", r.gvk())
		}
		if got := fieldOf(r.newObject(), "Status").IsValid(); r.status && !got {
			t.Errorf("%s: no Status field", r.kind)
		}
		if r.generation && r.plural != "priorityclasses" && !fieldOf(r.newObject(), "Spec").IsValid() {
			t.Errorf("%s: no Spec field", r.kind)
		}
		if _, ok := r.selectable()[r.indexed]; r.indexed != "" && !ok {
			t.Errorf("%s: indexed by %s, which it cannot be selected by", r.kind, r.indexed)
		}
		if newStrategy(scheme, r).name == nil {
			t.Errorf("%s: no rule for names", r.kind)
		}
	}
}

func TestUpdateKeepsWhatItMayNotWrite(t *testing.T) {
	rows := resources()
	scheme, err := newScheme(rows)
	if err != nil {
		t.Fatal(err)
	}
	f := randfill.NewWithSeed(2).NilChance(0.5).NumElements(1, 2).MaxDepth(6)
	for i := range rows {
		r := &rows[i]
		if !r.status || r.kind == "CertificateSigningRequest" || r.kind == "Service" {
			continue // tested with the server
		}
		s := newStrategy(scheme, r)
		for range 10 {
			old, obj := r.newObject(), r.newObject()
			f.Fill(old)
			f.Fill(obj)
			was := old.DeepCopyObject()
			status := fieldOf(old, "Status").Interface()
			update := obj.DeepCopyObject()
			s.PrepareForUpdate(context.Background(), update, old)
			if !equality.Semantic.DeepEqual(fieldOf(update, "Status").Interface(), status) {
				t.Fatalf("%s: an update wrote the status", r.kind)
			}
			spec := fieldOf(old, "Spec").Interface()
			update = obj.DeepCopyObject()
			statusStrategy{s}.PrepareForUpdate(context.Background(), update, old)
			if !equality.Semantic.DeepEqual(fieldOf(update, "Spec").Interface(), spec) {
				t.Fatalf("%s: a status update wrote the spec", r.kind)
			}
			if !equality.Semantic.DeepEqual(old, was) {
				t.Fatalf("%s: the old object was changed", r.kind)
			}
		}
	}
}

// brokenListener fails after one connection.
type brokenListener struct {
	net.Listener
	conns chan net.Conn
}

var errBroken = errors.New("broken")

func (l *brokenListener) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, errBroken
	}
	return c, nil
}

func (l *brokenListener) Close() error   { return nil }
func (l *brokenListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func TestListenerFailure(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	conns := make(chan net.Conn, 1)
	conns <- a
	close(conns)
	l := newListener(&brokenListener{conns: conns})
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	done := make(chan error)
	go func() {
		_, err := l.Accept()
		done <- err
	}()
	<-l.failed
	if !errors.Is(l.failure(), errBroken) {
		t.Errorf("failure: %v", l.failure())
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("accept after close: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}

	// Closed by us first, it has not failed.
	conns = make(chan net.Conn)
	l = newListener(&brokenListener{conns: conns})
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	close(conns)
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) || l.failure() != nil {
		t.Errorf("%v, %v", err, l.failure())
	}
}

func TestConfigErrors(t *testing.T) {
	l := &brokenListener{}
	good := Config{Listener: l, ServingCertFile: "c", ServingKeyFile: "k", ClientCAFile: "ca"}
	for name, change := range map[string]func(*Config){
		"no listener":               func(c *Config) { c.Listener = nil },
		"no serving certificate":    func(c *Config) { c.ServingKeyFile = "" },
		"no client CA":              func(c *Config) { c.ClientCAFile = "" },
		"authenticator and authori": func(*Config) {},
	} {
		c := good
		change(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Plugins are asked in Kubernetes' order, quotas last, and those left out are not made.
func TestAdmissionPlugins(t *testing.T) {
	all := AdmissionPlugins()
	if want := "NamespaceLifecycle TaintNodesByCondition ServiceAccount LimitRanger Priority DefaultTolerationSeconds PodTopologyLabels PodSecurity RuntimeClass " +
		"CertificateApproval CertificateSigning MutatingAdmissionWebhook ValidatingAdmissionPolicy ValidatingAdmissionWebhook ResourceQuota"; strings.Join(all, " ") != want {
		t.Errorf("%q", all)
	}
	s := &Server{cfg: Config{DisabledAdmission: slices.DeleteFunc(all, func(name string) bool { return name == "Priority" })}}
	got, err := s.enabled(append(s.builtin(), s.late(nil, nil, nil)...))
	if err != nil || len(got) != 1 || !got[0].Handles("CREATE") {
		t.Errorf("%v, %v", got, err)
	}
	c := Config{
		DisabledAdmission: []string{"Quota"}, Listener: &net.TCPListener{}, ServingCertFile: "x", ServingKeyFile: "x", ClientCAFile: "x",
		Authenticator: authenticator.RequestFunc(nil), Authorizer: authorizer.AuthorizerFunc(nil),
	}
	if err := c.complete(); err == nil || !strings.Contains(err.Error(), `"Quota"`) {
		t.Errorf("a name that is none: %v", err)
	}
}
