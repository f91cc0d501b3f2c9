// The pure parts: pools, the scheme, who may read without a name.

package apiserver

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/hawser-project/hawser/controlplane/apiserver/kinds"
)

func TestHostAddr(t *testing.T) {
	for _, c := range []struct {
		cidr string
		i    int
		want string
	}{
		{"10.96.0.0/12", 0, ""}, // network
		{"fd00::/112", 0, ""},
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

// TestScheme wants every kind that is stored under both versions.
func TestScheme(t *testing.T) {
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kinds.All() {
		if gvk := k.GVK(); !scheme.Recognizes(gvk) || !scheme.Recognizes(gvk.GroupKind().WithVersion(runtime.APIVersionInternal)) {
			t.Errorf("%s: not in the scheme", gvk)
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
	if want := "NamespaceLifecycle TaintNodesByCondition ServiceAccount LimitRanger Priority DefaultTolerationSeconds PodTopologyLabels PodSecurity DefaultStorageClass RuntimeClass " +
		"CertificateApproval CertificateSigning DefaultIngressClass PodResizeValidator MutatingAdmissionWebhook ValidatingAdmissionPolicy ValidatingAdmissionWebhook ResourceQuota"; strings.Join(all, " ") != want {
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

// TestServiceLeadsToNoLink: the service does not lead to an address that the API refuses.
func TestServiceLeadsToNoLink(t *testing.T) {
	for addr, leads := range map[string]bool{"192.0.2.1": true, "fd00::1": true, "127.0.0.1": false, "::1": false, "169.254.1.1": false, "fe80::1": false} {
		s := &Server{cfg: Config{AdvertiseAddress: netip.MustParseAddr(addr), AdvertisePort: 6443}}
		if got := s.self(); got.IsValid() != leads {
			t.Errorf("%s: the service leads to %v", addr, got)
		}
	}
}

// TestWarnsOfALinkLocalAddress: a server whose address the API does not take says that pods do not
// find it.
func TestWarnsOfALinkLocalAddress(t *testing.T) {
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for addr, want := range map[string]bool{"169.254.1.1": true, "fe80::1": true, "127.0.0.1": false, "192.0.2.10": false} {
		var log bytes.Buffer
		c := Config{AdvertiseAddress: netip.MustParseAddr(addr), Listener: ln, Log: slog.New(slog.NewTextHandler(&log, nil))}
		if err := c.advertise(); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(log.String(), "the service default/kubernetes has no endpoints"); got != map[bool]int{true: 1}[want] {
			t.Errorf("%s: %q", addr, log.String())
		}
	}
}
