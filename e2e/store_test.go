// An etcd of three members, each a process of its own, and what servers make of it when
// members are killed.

package e2e

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/hawser-project/hawser/auth/pki/pkitest"
	"github.com/hawser-project/hawser/e2e/await"
)

// A store is an etcd of three members. They, and their clients, show each other
// certificates of one authority.
type store struct {
	dir     string
	members []*member
	client  *clientv3.Client
}

// A member is what its process is told: where it keeps its data, where it takes clients
// and other members, and who those are.
type member struct {
	Name, Dir, Client, Peer, Cluster string
	CA, Cert, Key                    string // PEM files

	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended
}

// startStore runs a store until the test ends.
func startStore(t *testing.T) *store {
	t.Helper()
	st := &store{dir: shortTempDir(t)}
	ca := pkitest.New(t, "store")
	must(t, os.WriteFile(st.file("ca.crt"), ca.PEM(), 0o600))
	tmpl := pkitest.NodeServing("", "127.0.0.1")
	tmpl.Subject = pkix.Name{CommonName: "member"}
	tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, pkitest.NodeClient("").ExtKeyUsage...) // of other members
	issue(t, st.dir, "member", ca, tmpl)
	issue(t, st.dir, "client", ca, pkitest.NodeClient(""))
	var cluster []string
	for i := range 3 {
		name := "m" + strconv.Itoa(i)
		m := &member{
			Name: name, Dir: st.file(name), Client: "https://127.0.0.1:" + strconv.Itoa(await.FreePort(t)), Peer: "https://127.0.0.1:" + strconv.Itoa(await.FreePort(t)),
			CA: st.file("ca.crt"), Cert: st.file("member.crt"), Key: st.file("member.key"),
		}
		st.members = append(st.members, m)
		cluster = append(cluster, name+"="+m.Peer)
	}
	for _, m := range st.members {
		m.Cluster = strings.Join(cluster, ",")
		m.start(t)
		t.Cleanup(func() { m.end(t) })
	}
	st.connect(t)
	for _, m := range st.members {
		st.healthy(t, m)
	}
	return st
}

// issue writes a pair NAME.crt and NAME.key of an authority, after tmpl.
func issue(t *testing.T, dir, name string, ca *pkitest.Authority, tmpl *x509.Certificate) {
	t.Helper()
	pair := ca.Issue(t, tmpl)
	must(t, os.WriteFile(filepath.Join(dir, name+".crt"), append(pkitest.PEM("CERTIFICATE", pair.Certificate[0]), ca.PEM()...), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, name+".key"), pkitest.KeyPEM(t, pair.PrivateKey), 0o600))
}

func (st *store) file(name string) string { return filepath.Join(st.dir, name) }

// connect makes the test's own client.
func (st *store) connect(t *testing.T) {
	t.Helper()
	conf, err := transport.TLSInfo{TrustedCAFile: st.file("ca.crt"), CertFile: st.file("client.crt"), KeyFile: st.file("client.key")}.ClientConfig()
	must(t, err)
	st.client, err = clientv3.New(clientv3.Config{Endpoints: []string{st.members[0].Client}, TLS: conf})
	must(t, err)
	t.Cleanup(func() { _ = st.client.Close() })
}

// flags are those of a server on the store.
func (st *store) flags() []string {
	var urls []string
	for _, m := range st.members {
		urls = append(urls, m.Client)
	}
	return []string{
		"--etcd-servers=" + strings.Join(urls, ","), "--etcd-cafile=" + st.file("ca.crt"),
		"--etcd-certfile=" + st.file("client.crt"), "--etcd-keyfile=" + st.file("client.key"),
	}
}

// upArgs are arguments of hawser up, with those that have its server use the store.
func (st *store) upArgs(args ...string) []string {
	for _, f := range st.flags() {
		args = append(args, "--server-arg="+f)
	}
	return args
}

// healthy waits until a member follows a leader, or is it.
func (st *store) healthy(t *testing.T, m *member) {
	t.Helper()
	eventually(t, m.Name+" of the store is healthy", func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		s, err := st.client.Status(ctx, m.Client)
		if err == nil && (s.Leader == 0 || s.RaftAppliedIndex+1 < s.RaftIndex) {
			err = fmt.Errorf("leader %x, %d of %d applied", s.Leader, s.RaftAppliedIndex, s.RaftIndex)
		}
		return err
	})
}

// leader is the member that leads.
func (st *store) leader(t *testing.T) *member {
	t.Helper()
	for _, m := range st.members {
		if s, err := st.client.Status(t.Context(), m.Client); err == nil && s.Leader == s.Header.MemberId {
			return m
		}
	}
	t.Fatal("no member leads")
	return nil
}

// start runs the member until it is killed. It may then be started again.
func (m *member) start(t *testing.T) {
	t.Helper()
	arg, err := json.Marshal(m)
	must(t, err)
	out, err := os.OpenFile(m.Dir+".log", os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	must(t, err)
	m.cmd, m.ended = exec.Command(os.Args[0]), make(chan struct{})
	m.cmd.Env = append(os.Environ(), roleEnv+"=store-member "+string(arg))
	m.cmd.Stdout, m.cmd.Stderr = out, out
	must(t, m.cmd.Start())
	cmd, ended := m.cmd, m.ended
	go func() {
		_ = cmd.Wait() // killed
		_ = out.Close()
		close(ended)
	}()
}

// end kills the member's process, when the servers have ended.
func (m *member) end(t *testing.T) {
	_ = m.cmd.Process.Kill()
	<-m.ended
	if b, err := os.ReadFile(m.Dir + ".log"); err == nil && t.Failed() {
		t.Logf("--- %s\n%s", m.Name, b[max(0, len(b)-2000):])
	}
}

// kill ends the member's process at once.
func (m *member) kill(t *testing.T) {
	t.Helper()
	must(t, m.cmd.Process.Kill())
	<-m.ended
}

// runMember is what the process of a member does.
func runMember(arg string) error {
	var m member
	if err := json.Unmarshal([]byte(arg), &m); err != nil {
		return err
	}
	peer, err := url.Parse(m.Peer)
	if err != nil {
		return err
	}
	client, err := url.Parse(m.Client)
	if err != nil {
		return err
	}
	c := embed.NewConfig()
	c.Name, c.Dir, c.InitialCluster, c.LogLevel = m.Name, m.Dir, m.Cluster, "warn"
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{*peer}, []url.URL{*peer}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{*client}, []url.URL{*client}
	c.PeerTLSInfo = transport.TLSInfo{TrustedCAFile: m.CA, CertFile: m.Cert, KeyFile: m.Key, ClientCertAuth: true}
	c.ClientTLSInfo = c.PeerTLSInfo
	e, err := embed.StartEtcd(c)
	if err != nil {
		return err
	}
	defer e.Close()
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	select {
	case err = <-e.Err():
	case <-asked:
	}
	return err
}
