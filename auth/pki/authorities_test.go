// Tests of the authorities: the purpose of each, and the migration of a directory with one
// authority, with an interruption at every step.

package pki

import (
	"bytes"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
)

func certs(t *testing.T, file string) []*x509.Certificate {
	t.Helper()
	list, err := readCerts(file)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func pool(list ...*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range list {
		p.AddCert(c)
	}
	return p
}

// passes verifies chain for a purpose by roots.
func passes(chain, roots []*x509.Certificate, usage x509.ExtKeyUsage) error {
	_, err := chain[0].Verify(x509.VerifyOptions{Roots: pool(roots...), Intermediates: pool(chain[1:]...), KeyUsages: []x509.ExtKeyUsage{usage}})
	return err
}

func TestEachAuthoritySignsForOnePurpose(t *testing.T) {
	p := ensure(t, config(t))
	if p.server.cert.Equal(p.client.cert) || p.client.cert.Equal(p.kubelet.cert) {
		t.Fatal("the authorities are the same")
	}
	for _, name := range []string{APIServer, KubeletClient, ConnectClient, Admin, ControllerManager, Scheduler} {
		for _, ca := range []string{CA, ClientCA, KubeletCA} {
			for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
				want := name == APIServer && ca == CA && usage == x509.ExtKeyUsageServerAuth ||
					name != APIServer && ca == ClientCA && usage == x509.ExtKeyUsageClientAuth
				if err := passes(certs(t, p.Path(name, false)), certs(t, p.Path(ca, false)), usage); (err == nil) != want {
					t.Errorf("%s by %s for usage %d: %v, want it to pass: %v", name, ca, usage, err, want)
				}
			}
		}
	}
}

// An authority of clients cannot sign a server.
func TestAuthoritiesAreBoundToTheirPurpose(t *testing.T) {
	p := ensure(t, config(t))
	for _, a := range []*authority{&p.client, &p.kubelet, &p.server} {
		tmpl := pkitest.NodeServing("n", "localhost")
		tmpl.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		cert, err := x509.ParseCertificate((&pkitest.Authority{Cert: a.cert, Key: a.key}).Issue(t, tmpl).Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		other := x509.ExtKeyUsageClientAuth
		if a.usage == other {
			other = x509.ExtKeyUsageServerAuth
		}
		chain, roots := []*x509.Certificate{cert}, []*x509.Certificate{a.cert}
		if err := passes(chain, roots, a.usage); err != nil {
			t.Errorf("%s: %v", a.name, err)
		}
		if passes(chain, roots, other) == nil {
			t.Errorf("%s signs for another purpose", a.name)
		}
	}
}

func TestKeyWithoutCertificateIsCertifiedAnew(t *testing.T) {
	for _, name := range []string{CA, ClientCA, KubeletCA} {
		c := config(t)
		p := ensure(t, c)
		before := certs(t, p.Path(name, false))[0]
		leaves := read(t, p.Path(Admin, false))
		remove(t, p.Path(name, false))
		ensure(t, c)
		after := certs(t, p.Path(name, false))[0]
		if !bytes.Equal(before.RawSubjectPublicKeyInfo, after.RawSubjectPublicKeyInfo) {
			t.Errorf("%s has another key", name)
		}
		if !bytes.Equal(leaves, read(t, p.Path(Admin, false))) {
			t.Errorf("%s: a certificate was made anew though the key is the same", name)
		}
	}
}

// checkMigrated checks a migrated directory, for clients that have the old authority only and
// for new ones.
func checkMigrated(t *testing.T, p *PKI, old *pkitest.Authority) {
	t.Helper()
	before, now := []*x509.Certificate{old.Cert}, certs(t, p.Path(CA, false))
	serving := certs(t, p.Path(APIServer, false))
	for who, roots := range map[string][]*x509.Certificate{"old": before, "new": now} {
		if err := passes(serving, roots, x509.ExtKeyUsageServerAuth); err != nil {
			t.Errorf("%s clients do not believe the server: %v", who, err)
		}
	}
	var hashes [][32]byte
	for _, c := range serving[1:] {
		hashes = append(hashes, sha256.Sum256(c.RawSubjectPublicKeyInfo))
	}
	for who, root := range map[string]*x509.Certificate{"old": old.Cert, "new": now[0]} {
		if !slices.Contains(hashes, sha256.Sum256(root.RawSubjectPublicKeyInfo)) {
			t.Errorf("the chain does not show the authority of %s join commands", who)
		}
	}
	if len(now) != 1 || now[0].Equal(old.Cert) {
		t.Error("ca.crt still has the old authority")
	}
	// Old nodes require a client certificate of the old authority from the server.
	if err := passes(certs(t, p.Path(KubeletClient, false)), before, x509.ExtKeyUsageClientAuth); err != nil {
		t.Errorf("old nodes do not believe the server: %v", err)
	}
	for _, name := range []string{ClientCA, KubeletCA} {
		if list := certs(t, p.Path(name, false)); len(list) != 2 || list[0].Equal(old.Cert) || !list[1].Equal(old.Cert) {
			t.Errorf("%s names %d authorities, want its own and then the old one", name, len(list))
		}
	}
	if err := passes(certs(t, p.Path(Admin, false)), certs(t, p.Path(ClientCA, false))[:1], x509.ExtKeyUsageClientAuth); err != nil {
		t.Errorf("the administrator's certificate: %v", err)
	}
	if _, err := os.Stat(p.Path(legacyCA, true)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the old key: %v, want none", err)
	}
	// New clients do not accept a certificate of the old authority as the server's.
	stolen, err := x509.ParseCertificate(old.Issue(t, pkitest.NodeServing("localhost", "localhost", "127.0.0.1")).Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if passes([]*x509.Certificate{stolen, serving[1], old.Cert}, now, x509.ExtKeyUsageServerAuth) == nil {
		t.Error("a node's old serving certificate passes as the server's")
	}
}

func TestMigration(t *testing.T) {
	c := config(t)
	old := pkitest.Legacy(t, c.Dir, "localhost", "127.0.0.1")
	p := ensure(t, c)
	checkMigrated(t, p, old)
	var files []string
	before := map[string][]byte{}
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		files = append(files, e.Name())
		before[e.Name()] = read(t, filepath.Join(c.Dir, e.Name()))
	}
	ensure(t, c)
	for _, f := range files {
		if !bytes.Equal(before[f], read(t, filepath.Join(c.Dir, f))) {
			t.Errorf("the second start changed %s", f)
		}
	}
	// Renewed certificates still lead from the old authority.
	for _, name := range []string{APIServer, KubeletClient, Admin} {
		remove(t, p.Path(name, false))
	}
	checkMigrated(t, ensure(t, c), old)
	// Its end is the removal of one file.
	remove(t, filepath.Join(c.Dir, "legacy-ca.crt"))
	p = ensure(t, c)
	for _, name := range []string{ClientCA, KubeletCA} {
		if n := len(certs(t, p.Path(name, false))); n != 1 {
			t.Errorf("%s names %d authorities after the end of the old one", name, n)
		}
	}
	if err := passes(certs(t, p.Path(APIServer, false)), []*x509.Certificate{old.Cert}, x509.ExtKeyUsageServerAuth); err == nil {
		t.Error("the server still shows itself to those who know the old authority only")
	}
}

// A migration may be interrupted after any change of a file, and continues at the next start.
// The test clones the directory after each change.
func TestMigrationGoesOnAfterACrash(t *testing.T) {
	c := config(t)
	old := pkitest.Legacy(t, c.Dir, "localhost", "127.0.0.1")
	var states []string
	snapshot := func() {
		dir := filepath.Join(t.TempDir(), "pki")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(dir, os.DirFS(c.Dir)); err != nil {
			t.Fatal(err)
		}
		states = append(states, dir)
	}
	changed = snapshot
	defer func() { changed = func() {} }()
	ensure(t, c)
	changed = func() {}
	if len(states) < 20 {
		t.Fatalf("%d changes of files, want all of them", len(states))
	}
	for i, dir := range states {
		again := c
		again.Dir = dir
		p, err := Ensure(again)
		if err != nil {
			t.Fatalf("after change %d: %v", i+1, err)
		}
		checkMigrated(t, p, old)
	}
}

// The same for a first start.
func TestFirstStartGoesOnAfterACrash(t *testing.T) {
	c := config(t)
	var states []string
	changed = func() {
		dir := filepath.Join(t.TempDir(), "pki")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(dir, os.DirFS(c.Dir)); err != nil {
			t.Fatal(err)
		}
		states = append(states, dir)
	}
	defer func() { changed = func() {} }()
	ensure(t, c)
	changed = func() {}
	for i, dir := range states {
		again := c
		again.Dir = dir
		p, err := Ensure(again)
		if err != nil {
			t.Fatalf("after change %d: %v", i+1, err)
		}
		if p.legacy != nil {
			t.Errorf("after change %d: an authority of before was found where there is none", i+1)
		}
		if err := passes(certs(t, p.Path(APIServer, false)), certs(t, p.Path(CA, false)), x509.ExtKeyUsageServerAuth); err != nil {
			t.Errorf("after change %d: %v", i+1, err)
		}
	}
}

// With a slow clock all certificates of nodes would count as signed after the migration.
func TestMigrationNeedsAClock(t *testing.T) {
	c := config(t)
	pkitest.Legacy(t, c.Dir, "localhost")
	c.Now = func() time.Time { return time.Now().Add(-48 * time.Hour) }
	if _, err := Ensure(c); err == nil || !strings.Contains(err.Error(), "set the clock") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(filepath.Join(c.Dir, "legacy-ca.crt")); err == nil {
		t.Error("the migration began")
	}
}

func TestServingPairLoadsAfterMigration(t *testing.T) {
	c := config(t)
	pkitest.Legacy(t, c.Dir, "localhost")
	p := ensure(t, c)
	for _, name := range []string{APIServer, KubeletClient, CA, ClientCA, KubeletCA} {
		if _, err := tls.LoadX509KeyPair(p.Path(name, false), p.Path(name, true)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
