// Tests of the names that no node may have.

package auth

import "testing"

func TestServerNames(t *testing.T) {
	s := NewServerNames("Hub.Example.com.", "host-1", "*.edge.example.com", "192.0.2.7", "10.96.0.1", "2001:db8::1", "")
	for _, name := range []string{
		"hub.example.com", "HUB.example.COM", "hub.example.com.", "host-1", "a.edge.example.com",
		"192.0.2.7", "192.0.519", "192.519", "3221225991", "0xc0000207", "0300.0.2.7", "[2001:db8::1]", "2001:db8:0::1", "::ffff:192.0.2.7",
		"10.96.1", "10.96.0.1", "127.0.0.1", "127.1", "127.9.9.9", "0.0.0.0", "0", "::1",
		"kubernetes", "Kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
		"kubernetes.default.svc.other.zone", "apiserver", "kube-apiserver", "localhost", "x.localhost", "localhost.localdomain",
	} {
		if s.Check(name) == nil {
			t.Errorf("a node may be called %q", name)
		}
		if !s.Own(name) {
			t.Errorf("%q is not the server's", name)
		}
	}
	for _, name := range []string{
		"node-1", "host-2", "hub", "example.com", "a.b.edge.example.com", "edge.example.com", "kubernetes-1", "kubernetes.example.com",
		"192.0.2.8", "10.96.0.2", "10", "7", "1.2.3.4.5", "999.1.1.1", "ip-192-0-2-7", "localhost-1",
	} {
		if err := s.Check(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if s.Own(name) {
			t.Errorf("%q is the server's", name)
		}
	}
	for _, wildcard := range []string{"*.example.com", "*.default.svc", "*.edge.example.com"} {
		if !s.Own(wildcard) {
			t.Errorf("%q covers a name of the server, and is not known for it", wildcard)
		}
	}
	if (&ServerNames{}).Check("kubernetes") == nil || (&ServerNames{}).Check("node-1") != nil {
		t.Error("the zero value has not the names of every server")
	}
}

func FuzzServerNames(f *testing.F) {
	for _, name := range []string{"node-1", "127.1", "*.a", "[::1]", ".", "0x", "kubernetes."} {
		f.Add(name)
	}
	s := NewServerNames("hub.example.com", "192.0.2.7")
	f.Fuzz(func(t *testing.T, name string) {
		if s.Check(name) != nil && !s.Own(name) {
			t.Errorf("%q is refused as a node and not the server's", name)
		}
		if s.Check(name) == nil && s.Check(name+".") != nil {
			t.Errorf("%q with a dot is another name", name)
		}
	})
}
