package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-project/hawser/auth/atomicfile"
)

func config(t *testing.T) Config {
	t.Helper()
	return Config{Dir: filepath.Join(t.TempDir(), "pki"), Names: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}}
}

func ensure(t *testing.T, c Config) *PKI {
	t.Helper()
	p, err := Ensure(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFilesAreProtected(t *testing.T) {
	c := config(t)
	p := ensure(t, c)
	if err := p.WriteKubeconfig(filepath.Join(c.Dir, "admin.kubeconfig"), "https://127.0.0.1:6443", Admin); err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(c.Dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Fatalf("directory: %v %v", fi.Mode(), err)
	}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 25 {
		t.Errorf("%d files, want twelve pairs and a kubeconfig: %v", len(entries), entries)
	}
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		secret := !strings.HasSuffix(e.Name(), ".crt") && !strings.HasSuffix(e.Name(), ".pub")
		if secret && fi.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", e.Name(), fi.Mode())
		}
	}
}

func TestSecondStartChangesNothing(t *testing.T) {
	c := config(t)
	p := ensure(t, c)
	for _, name := range []string{CA, ClientCA, KubeletCA, APIServer, Admin} {
		before := read(t, p.Path(name, false))
		ensure(t, c)
		if !bytes.Equal(before, read(t, p.Path(name, false))) {
			t.Errorf("%s was made anew", name)
		}
	}
}

func TestRenewal(t *testing.T) {
	c := config(t)
	p := ensure(t, c)
	ca, serving, admin := read(t, p.Path(CA, false)), read(t, p.Path(APIServer, false)), read(t, p.Path(Admin, false))

	c.Names = append(c.Names, "hawser.example")
	ensure(t, c)
	if bytes.Equal(serving, read(t, p.Path(APIServer, false))) {
		t.Error("a new name did not renew the serving certificate")
	}
	if !bytes.Equal(admin, read(t, p.Path(Admin, false))) {
		t.Error("a new name of the server renewed the admin's certificate")
	}

	c.Now = func() time.Time { return time.Now().Add(leafLife - renewBefore + time.Hour) }
	ensure(t, c)
	if bytes.Equal(admin, read(t, p.Path(Admin, false))) {
		t.Error("a certificate about to expire was kept")
	}
	if !bytes.Equal(ca, read(t, p.Path(CA, false))) {
		t.Error("the authority was replaced")
	}
}

// TestNoSpace: certificates that are due and cannot be replaced stay in use, with a warning.
// One that has ended, or lacks a name, is an error. No key is without its certificate.
func TestNoSpace(t *testing.T) {
	now := time.Now()
	for name, tc := range map[string]struct {
		later time.Duration
		names []string
		fails bool
	}{
		"due":         {leafLife - renewBefore + time.Hour, nil, false},
		"ended":       {leafLife + time.Hour, nil, true},
		"not its own": {time.Hour, []string{"hawser.example"}, true},
	} {
		for space := range 2 { // how many files there is space for
			c, log := config(t), new(bytes.Buffer)
			c.Now, c.Log = func() time.Time { return now }, slog.New(slog.NewTextHandler(log, nil))
			p := ensure(t, c)
			left := space
			prepare = func(file string, data []byte, mode os.FileMode) (*atomicfile.Prepared, error) {
				if left--; left < 0 {
					return nil, syscall.ENOSPC
				}
				return atomicfile.Prepare(file, data, mode)
			}
			c.Now, c.Names = func() time.Time { return now.Add(tc.later) }, append(tc.names, c.Names...)
			_, err := Ensure(c)
			prepare = atomicfile.Prepare
			if (err != nil) != tc.fails || err != nil && !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("%s: with space for %d files: %v", name, space, err)
			}
			if warned := strings.Contains(log.String(), "level=WARN"); warned == tc.fails {
				t.Errorf("%s: with space for %d files the log says %s", name, space, log)
			}
			for _, l := range p.leaves() {
				if _, err := tls.LoadX509KeyPair(p.Path(l.name, false), p.Path(l.name, true)); err != nil {
					t.Errorf("%s: with space for %d files: %v", name, space, err)
				}
			}
			if found, err := filepath.Glob(filepath.Join(c.Dir, atomicfile.TempPrefix+"*")); err != nil || len(found) > 0 {
				t.Errorf("%s: left over: %q, %v", name, found, err)
			}
		}
	}
}

func TestChainVerifiesAndCarriesTheAuthority(t *testing.T) {
	c := config(t)
	p := ensure(t, c)
	pair, err := tls.LoadX509KeyPair(p.Path(APIServer, false), p.Path(APIServer, true))
	if err != nil {
		t.Fatal(err)
	}
	if len(pair.Certificate) != 2 {
		t.Fatalf("serving chain has %d certificates, want leaf and authority", len(pair.Certificate))
	}
	roots := x509.NewCertPool()
	roots.AddCert(p.CACert())
	for _, name := range []string{"localhost", "127.0.0.1"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err == nil {
		t.Error("the serving certificate passes as a client's")
	}
}

func TestBrokenFilesAreNamed(t *testing.T) {
	tests := map[string]struct {
		spoil func(t *testing.T, p *PKI)
		want  string
	}{
		"authority without key": {func(t *testing.T, p *PKI) { remove(t, p.Path(CA, true)) }, "ca.key"},
		"all of one authority": {func(t *testing.T, p *PKI) {
			remove(t, p.Path(ClientCA, false))
			remove(t, p.Path(ClientCA, true))
		}, "client-ca.crt and its key are missing"},
		"authority is no certificate": {func(t *testing.T, p *PKI) { write(t, p.Path(CA, false), "nonsense") }, "ca.crt: no certificate in it"},
		"key of somebody else": {func(t *testing.T, p *PKI) {
			write(t, p.Path(CA, true), string(read(t, p.Path(Admin, true))))
		}, "does not belong to"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := config(t)
			tt.spoil(t, ensure(t, c))
			_, err := Ensure(c)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// TestKubeconfigIsKept: one that is as it should be is not written again, which a full disk
// would not allow.
func TestKubeconfigIsKept(t *testing.T) {
	c := config(t)
	p := ensure(t, c)
	file := filepath.Join(c.Dir, "kubeconfig")
	write := func(server string) os.FileInfo {
		t.Helper()
		if err := p.WriteKubeconfig(file, server, Admin); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode() != 0o600 {
			t.Errorf("mode %v", info.Mode())
		}
		return info
	}
	first := write("https://127.0.0.1:6443")
	if again := write("https://127.0.0.1:6443"); !os.SameFile(first, again) {
		t.Error("it was written again")
	}
	write("https://127.0.0.1:7443")
	if !bytes.Contains(read(t, file), []byte(":7443")) {
		t.Error("another server is not in it")
	}
	if err := os.Chmod(file, 0o644); err != nil {
		t.Fatal(err)
	}
	write("https://127.0.0.1:7443")
}

func TestKubeconfigIsComplete(t *testing.T) {
	c := config(t)
	p := ensure(t, c)
	file := filepath.Join(t.TempDir(), "admin.kubeconfig")
	if err := p.WriteKubeconfig(file, "https://127.0.0.1:6443", Admin); err != nil {
		t.Fatal(err)
	}
	rc, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	if rc.Host != "https://127.0.0.1:6443" || len(rc.CAData) == 0 || len(rc.CertData) == 0 || len(rc.KeyData) == 0 {
		t.Errorf("incomplete: %v", rc)
	}
}

func remove(t *testing.T, file string) {
	t.Helper()
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, file, data string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestHubOnly: a hub without an API server has a serving certificate and one for clients of
// its front end, and none that a cluster would accept.
func TestHubOnly(t *testing.T) {
	c := config(t)
	c.HubOnly = true
	p := ensure(t, c)
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got, want := strings.Join(names, " "), "ca.crt ca.key client-ca.crt client-ca.key connect-client.crt connect-client.key hub.crt hub.key"; got != want {
		t.Errorf("there are %s, want %s", got, want)
	}
	pool := x509.NewCertPool()
	pool.AddCert(p.CACert())
	leaf := certs(t, p.Path(Hub, false))[0]
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: "localhost"}); err != nil {
		t.Error(err)
	}
	if err := p.Renew(); err != nil {
		t.Error(err)
	}
	if !certs(t, p.Path(Hub, false))[0].Equal(leaf) {
		t.Error("it is made anew without need")
	}
}

// The certificate for extension servers is signed by its own authority: the other authorities
// do not verify it as a client's, and a hub has none.
func TestFrontProxy(t *testing.T) {
	c := config(t)
	p := ensure(t, c)
	client := certs(t, p.Path(FrontProxyClient, false))[0]
	if client.Subject.CommonName != FrontProxyClientUser || len(client.Subject.Organization) != 0 {
		t.Errorf("it is %s", client.Subject)
	}
	for _, name := range []string{CA, ClientCA, KubeletCA} {
		if client.CheckSignatureFrom(certs(t, p.Path(name, false))[0]) == nil {
			t.Errorf("%s signed it", name)
		}
	}
	if err := client.CheckSignatureFrom(certs(t, p.Path(FrontProxyCA, false))[0]); err != nil {
		t.Error(err)
	}
	// An older directory gets both at the next start, and keeps the others.
	kept := certs(t, p.Path(ClientCA, false))[0]
	for _, name := range []string{FrontProxyCA, FrontProxyClient} {
		for _, key := range []bool{false, true} {
			if err := os.Remove(p.Path(name, key)); err != nil {
				t.Fatal(err)
			}
		}
	}
	p = ensure(t, c)
	again := certs(t, p.Path(FrontProxyClient, false))[0]
	if err := again.CheckSignatureFrom(certs(t, p.Path(FrontProxyCA, false))[0]); err != nil || !certs(t, p.Path(ClientCA, false))[0].Equal(kept) {
		t.Errorf("after a start: %v", err)
	}
	c.Dir, c.HubOnly = t.TempDir()+"/hub", true
	p = ensure(t, c)
	if found, err := exists(p.Path(FrontProxyCA, false), p.Path(FrontProxyClient, false)); found || err != nil {
		t.Errorf("a hub has one: %v", err)
	}
}
