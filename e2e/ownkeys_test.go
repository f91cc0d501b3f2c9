// How the parts of the control plane reach the API: each with a key of its own, over TLS, and
// no server that is not the cluster's.

package e2e

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/e2e/await"
)

// A part of the control plane asks the API.
type part struct {
	agent *regexp.Regexp // its User-Agent
	user  string
	cert  string // the file of its certificate; empty if it has a token
	does  string // what it does once nothing is in its way
}

var parts = []part{
	{regexp.MustCompile(`^kube-controller-manager$|^kube-controller-manager/.*/([a-z-]+-controller|controllers|leader-election)$`), "system:kube-controller-manager", "controller-manager.crt", "create serviceaccounts"},
	{regexp.MustCompile(`^kube-scheduler$|^kube-scheduler/.*/(kube-scheduler|events)$`), "system:kube-scheduler", "scheduler.crt", "create pods/binding"},
	{regexp.MustCompile(`^hawser-ccm/`), "system:serviceaccount:kube-system:hawser-ccm", "", "patch services/status"},
}

// A guarded cluster is one with all parts of a control plane, whose API server writes down
// who asks.
type guarded struct {
	*cluster
	audit string
}

// A request is what the log of the API server says of one.
type request struct {
	Verb string
	User struct {
		Username string
		Extra    map[string][]string
	}
	UserAgent string
	ObjectRef struct{ Resource, Subresource string }
	At        time.Time `json:"requestReceivedTimestamp"`
}

// requests are all until now.
func (g *guarded) requests(t *testing.T) (out []request) {
	t.Helper()
	file, err := os.Open(g.audit)
	must(t, err)
	defer file.Close()
	for d := json.NewDecoder(file); ; {
		var r request
		if err := d.Decode(&r); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return out
		} else if err != nil {
			t.Fatal(err)
		}
		out = append(out, r)
	}
}

// each part acts, after so many requests: its requests are its own user's, by its own
// certificate.
func (g *guarded) each(t *testing.T, after int) {
	t.Helper()
	for _, p := range parts {
		eventually(t, p.user+" acts", func() error {
			done := false
			for i, r := range g.requests(t)[after:] {
				is, own := p.agent.MatchString(r.UserAgent), r.User.Username == p.user
				if is && !own {
					t.Fatalf("request %d of %s is %s's: %s %s", after+i, r.UserAgent, r.User.Username, r.Verb, r.ObjectRef.Resource)
				}
				if id := r.User.Extra["authentication.kubernetes.io/credential-id"]; own && p.cert != "" && fmt.Sprint(id) != fmt.Sprint([]string{"X509SHA256=" + g.hash(t, p.cert)}) {
					t.Fatalf("%s shows %q", p.user, id)
				}
				done = done || own && strings.TrimSuffix(r.Verb+" "+r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/") == p.does
			}
			if !done {
				return errNotYet
			}
			return nil
		})
	}
}

func (g *guarded) hash(t *testing.T, cert string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(g.dir, "pki", cert))
	must(t, err)
	block, _ := pem.Decode(b)
	sum := sha256.Sum256(block.Bytes)
	return hex.EncodeToString(sum[:])
}

// work has something for each part to do.
func (g *guarded) work(t *testing.T, name string) {
	t.Helper()
	g.mustKubectl(t, "", "create", "namespace", name)                                                                                                                               // the controllers' account
	g.mustKubectl(t, "", "create", "service", "loadbalancer", name, "--tcp=80:80")                                                                                                  // the cloud's address
	g.mustKubectl(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"`+name+`"},"spec":{"containers":[{"name":"c","image":"none","command":["true"]}]}}`, "create", "-f", "-") // a node
}

// TestOwnKeys: controllers, scheduler and cloud controller manager reach the API by TLS, each
// as its own user, and ask nothing of a server whose certificate is of another authority.
func TestOwnKeys(t *testing.T) {
	t.Parallel()
	flags, log := auditFlags(t)
	args := []string{"--nodes", "1"}
	for _, f := range flags {
		args = append(args, "--server-arg="+f)
	}
	g := &guarded{startUp(t, args...), log}
	inventory := filepath.Join(g.dir, "inventory.yaml")
	must(t, os.WriteFile(inventory, []byte("machines: [{name: node-1}]\nloadBalancers: {addresses: ["+balancerAddr+"]}\n"), 0o600))
	under, _ := bin(t)
	g.runCCM(t, []string{filepath.Join(under, "hawser-ccm")}, "ccm", g.account(t), await.FreePort(t), "--cloud-config", inventory, "--leader-elect=false") // which ends it after 10 s without the server
	g.work(t, "first")
	g.each(t, 0)
	g.impostor(t)
}

// impostor has the server show a certificate of another authority, with all names that its
// own has. Nobody asks it anything then; with its own one it is asked again.
func (g *guarded) impostor(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("ss"); err != nil || os.Geteuid() != 0 {
		t.Skipf("SKIPPED: connections are ended by ss, of Debian's package iproute2, and by root (%v)", err)
	}
	file := filepath.Join(g.dir, "pki", "apiserver")
	var own [2][]byte
	for i, ext := range []string{".crt", ".key"} {
		var err error
		own[i], err = os.ReadFile(file + ext)
		must(t, err)
	}
	other := pkitest.New(t, "hawser-server-ca")
	issue(t, filepath.Dir(file), "apiserver", other, pkitest.NodeServing("", "127.0.0.1", "localhost", "kubernetes", "kubernetes.default.svc"))
	eventually(t, "the server shows the other certificate", func() error {
		conn, err := tls.Dial("tcp", g.addr(), stranger())
		must(t, err)
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].CheckSignatureFrom(other.Cert)
	})
	g.cut(t)
	for _, log := range []string{"server.log", "ccm.log"} {
		eventually(t, log+" says why nobody asks", func() error {
			b, err := os.ReadFile(filepath.Join(g.dir, log))
			must(t, err)
			if !strings.Contains(string(b), "x509: certificate signed by unknown authority") {
				return errNotYet
			}
			return nil
		})
	}
	cut := time.Now() // the server has read what was sent before
	<-time.After(5 * time.Second)
	for _, r := range g.requests(t) {
		for _, p := range parts {
			if r.At.After(cut) && p.agent.MatchString(r.UserAgent) {
				t.Errorf("%s asks an impostor: %s %s", r.UserAgent, r.Verb, r.ObjectRef.Resource)
			}
		}
	}
	for i, ext := range []string{".crt", ".key"} {
		must(t, os.WriteFile(file+ext, own[i], 0o600))
	}
	eventually(t, "the server is itself again", func() error {
		_, err := g.client.Discovery().ServerVersion()
		return err
	})
	before := len(g.requests(t))
	g.work(t, "second")
	g.each(t, before)
}

func (g *guarded) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(g.port)) }

// cut ends all connections to the API server.
func (g *guarded) cut(t *testing.T) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ss", "--kill", "--tcp", "state", "established", "dport", "=", ":"+strconv.Itoa(g.port)).CombinedOutput(); err != nil {
		t.Fatalf("ss: %v: %s", err, out)
	}
}
