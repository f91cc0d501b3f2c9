// A cluster on one machine: a server and some nodes, each a process of its own.
// hawser up and hawser demo are made of it.

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"al.essio.dev/pkg/shellescape"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/hawser-project/hawser/auth/pki"
	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/cmd/lab"
)

const (
	adminKubeconfig = "admin.kubeconfig"
	// startTimeout bounds the wait for the server, and then for the nodes.
	startTimeout = 2 * time.Minute
	pollInterval = 50 * time.Millisecond
	// quietStart is how long nothing is said of what is waited for.
	quietStart = 2 * time.Second
	maxUpNodes = 100
)

// clusterConfig says what to start.
type clusterConfig struct {
	dir        string
	nodes      int
	port       int
	netns      bool
	serverArgs []string
	agentArgs  []string
	out        io.Writer // what is going on, for people
	progress   io.Writer // what is waited for, once that takes longer than quietStart; nil means nobody is told
}

// A cluster has been started. Close ends it.
type cluster struct {
	cfg       clusterConfig
	url       string // at which agents reach the server
	spawner   *spawner
	endSpawn  func()
	unlock    func()
	network   *lab.Lab // nil without namespaces
	server    *child
	agents    []*child
	began     time.Time // when the first agent was started
	agentPath string
	client    kubernetes.Interface
	rest      *rest.Config
}

func (c *clusterConfig) check() error {
	switch {
	case c.nodes < 0 || c.nodes > maxUpNodes:
		return fmt.Errorf("--nodes %d: want 0 to %d", c.nodes, maxUpNodes)
	case c.port < 1 || c.port > 65535:
		return fmt.Errorf("--port %d: want 1 to 65535", c.port)
	}
	if c.netns {
		if err := lab.Check(); err != nil {
			return fmt.Errorf("--netns: %w", err)
		}
	}
	var err error
	if c.dir, err = setup.CheckDataDir(c.dir); err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	return c.checkServer()
}

// checkAddress refuses to start nodes that would never be Ready because the machine has none
// of the given addresses but loopback and link-local ones. In namespaces they have their own.
func (c *clusterConfig) checkAddress(all []net.Addr) error {
	named := func(arg string) bool { return strings.HasPrefix(arg, "--node-ip") }
	if c.netns || c.nodes == 0 || slices.ContainsFunc(c.agentArgs, named) {
		return nil
	}
	for _, a := range all {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() {
			return nil
		}
	}
	return errors.New("this machine has no address but loopback ones, and a node needs one: connect it to a network, put the nodes into namespaces (--netns), or give it one, such as by: ip address add 192.168.77.1/32 dev lo")
}

// checkServer refuses arguments that the server would refuse.
func (c *clusterConfig) checkServer() error {
	var o serverOptions
	f := pflag.NewFlagSet("server", pflag.ContinueOnError)
	o.addFlags(f)
	err := f.Parse(c.serverFlags("127.0.0.1", "127.0.0.1"))
	if err == nil {
		err = o.check()
	}
	if err != nil {
		return fmt.Errorf("--server-arg: %w", err)
	}
	return nil
}

// serverFlags are the arguments of hawser server.
func (c *clusterConfig) serverFlags(bind, advertise string) []string {
	return append([]string{
		"--data-dir", c.dir, "--bind-address", bind, "--advertise-address", advertise,
		"--secure-port", strconv.Itoa(c.port), "--connect-port", "0",
	}, c.serverArgs...)
}

// startCluster returns once every node is Ready. On error nothing is left
// running.
func startCluster(ctx context.Context, cfg clusterConfig) (_ *cluster, err error) {
	if err = cfg.check(); err != nil {
		return nil, err
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	if err = cfg.checkAddress(addresses); err != nil {
		return nil, err
	}
	agentPath, err := sibling("hawser-agent")
	if err != nil {
		return nil, err
	}
	unlock, err := setup.TakeDataDir(cfg.dir, "up.lock")
	if err != nil {
		return nil, fmt.Errorf("--dir: %w", err)
	}
	if cfg.progress == nil {
		cfg.progress = io.Discard
	}
	c := &cluster{cfg: cfg, unlock: unlock, agentPath: agentPath}
	c.spawner, c.endSpawn = newSpawner()
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	if cfg.netns {
		if c.network, err = lab.New(ctx, cfg.dir); err != nil {
			return c, err
		}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("the cluster did not come up within "+startTimeout.String()))
	defer cancel()
	if err := c.startServer(ctx); err != nil {
		return c, err
	}
	if err := c.startAgents(ctx); err != nil {
		return c, err
	}
	return c, c.waitNodes(ctx)
}

// kubeconfig names the administrator's file.
func (c *cluster) kubeconfig() string { return filepath.Join(c.cfg.dir, adminKubeconfig) }

func (c *cluster) startServer(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	bind, advertise := "127.0.0.1", "127.0.0.1"
	if c.network != nil {
		// The nodes come in over the lab's bridge, kubectl over loopback.
		bind, advertise = "0.0.0.0", c.network.HostIP()
	}
	c.url = "https://" + net.JoinHostPort(advertise, strconv.Itoa(c.cfg.port))
	args := append([]string{"server"}, c.cfg.serverFlags(bind, advertise)...)
	c.server, err = c.spawner.start("server", exec.CommandContext(context.WithoutCancel(ctx), self, args...), c.cfg.dir, "server")
	if err != nil {
		return err
	}
	if err = c.waitServer(ctx); err != nil {
		return err
	}
	if c.rest, err = loadKubeconfig(c.kubeconfig()); err != nil {
		return err
	}
	c.client, err = kubernetes.NewForConfig(c.rest)
	return err
}

// waitServer asks /readyz until it says yes, the server ends, or ctx does.
func (c *cluster) waitServer(ctx context.Context) error {
	url := "https://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(c.cfg.port)) + "/readyz"
	var last error
	slow := slowly{out: c.cfg.progress, began: time.Now()}
	for {
		if last = ready(ctx, url, filepath.Join(c.cfg.dir, "pki", pki.CA+".crt")); last == nil {
			return nil
		}
		select {
		case <-c.server.done:
			return fmt.Errorf("the server ended: %s", c.ofUp(c.server.lastLine()))
		default:
		}
		slow.say("waiting for the server: " + c.server.log)
		if err := sleep(ctx, pollInterval); err != nil {
			return fmt.Errorf("wait for the server (%w); last: %w; see %s", err, last, c.server.log)
		}
	}
}

// ofUp names the flag of hawser up that stands for a flag of the server.
func (c *cluster) ofUp(line string) string {
	return strings.Replace(line, "--secure-port: ", "--port: ", 1)
}

// slowly tells what is waited for once that takes longer than quietStart, and then each time
// that it is something else.
type slowly struct {
	out   io.Writer
	began time.Time
	said  string
}

func (s *slowly) say(what string) {
	if what != s.said && time.Since(s.began) > quietStart {
		s.said = what
		fmt.Fprintln(s.out, what) // nobody has to listen
	}
}

// ready makes one request to url, trusting the authority in caFile only.
func ready(ctx context.Context, url, caFile string) error {
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return fmt.Errorf("%s holds no certificate", caFile)
	}
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Transport: tr, Timeout: 5 * time.Second}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}

// upEviction leaves out the disk, as kind does for its nodes: all nodes share it with whatever
// else is on this machine, so that one that is nearly full would stop every pod, and to evict
// pods would free nothing.
const upEviction = "memory.available<100Mi"

func (c *cluster) startAgents(ctx context.Context) error {
	if c.cfg.nodes == 0 {
		return nil
	}
	c.began = time.Now()
	token, err := makeToken(ctx, c.client, time.Now(), time.Hour, "")
	if err != nil {
		return err
	}
	pins, err := caPins(c.rest)
	if err != nil {
		return err
	}
	tokenFile := filepath.Join(c.cfg.dir, "join-token")
	if err := os.WriteFile(tokenFile, []byte(token+"\n"), 0o600); err != nil {
		return err
	}
	outlives := context.WithoutCancel(ctx) // close ends the agents, in its own order
	for i := range c.cfg.nodes {
		name := fmt.Sprintf("node-%d", i+1)
		dir := filepath.Join(c.cfg.dir, "nodes", name)
		args := append([]string{
			"--server", c.url, "--token-file", tokenFile, "--discovery-token-ca-cert-hash", pins,
			"--data-dir", dir, "--node-name", name, "--eviction-hard", upEviction,
		}, c.cfg.agentArgs...)
		cmd := exec.CommandContext(outlives, c.agentPath, args...)
		if c.network != nil {
			node, err := c.network.AddNode(ctx, name)
			if err != nil {
				return err
			}
			cmd = node.Command(outlives, c.agentPath, args...)
		}
		agent, err := c.spawner.start(name, cmd, dir, "agent")
		if err != nil {
			return err
		}
		c.agents = append(c.agents, agent)
	}
	return nil
}

// waitNodes returns when every node is Ready.
func (c *cluster) waitNodes(ctx context.Context) error {
	slow := slowly{out: c.cfg.progress, began: time.Now()}
	missing, why := c.cfg.nodes, "" // as far as is known
	for {
		nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		switch {
		case err == nil:
			var ready int
			if ready, why = countReady(nodes.Items, c.began); ready >= c.cfg.nodes {
				return nil
			}
			missing = c.cfg.nodes - ready
		case ctx.Err() == nil: // or it is the end of the wait, which is no news
			why = setup.Printable(err.Error())
		}
		for _, a := range c.agents {
			select {
			case <-a.done:
				return fmt.Errorf("the agent of %s ended: %s", a.name, a.lastLine())
			default:
			}
		}
		slow.say(strings.TrimSuffix(fmt.Sprintf("waiting for %d of %d nodes: %s", missing, c.cfg.nodes, why), ": "))
		if cause := sleep(ctx, pollInterval); cause != nil {
			return notReady(missing, c.cfg.nodes, cause, why, filepath.Join(c.cfg.dir, "nodes", "*", "agent.log"))
		}
	}
}

// notReady says, in one line, why the wait for nodes was given up: cause. why is what was
// last known of a node that is not Ready, or the error of the last look at them.
func notReady(missing, of int, cause error, why, logs string) error {
	err := fmt.Errorf("%d of %d nodes are not Ready: %w", missing, of, cause)
	if why != "" {
		err = fmt.Errorf("%w; last: %s", err, why)
	}
	return fmt.Errorf("%w; see %s", err, logs)
}

// countReady counts the nodes that have said since began that they are Ready, and says why the
// first other one is not. What a Node said before is from an earlier start of its agent.
func countReady(nodes []corev1.Node, began time.Time) (n int, why string) {
	began = began.Truncate(time.Second) // as nodes write theirs
	for _, node := range nodes {
		for _, cond := range node.Status.Conditions {
			switch {
			case cond.Type != corev1.NodeReady:
			case cond.Status == corev1.ConditionTrue && !cond.LastHeartbeatTime.Time.Before(began):
				n++
			case why == "" && cond.Status == corev1.ConditionTrue:
				why = node.Name + ": it has not reported since it was started"
			case why == "":
				why = node.Name + ": " + setup.Printable(cond.Message)
			}
		}
	}
	return n, why
}

// wait returns nil when ctx is done. A child that ends before is told of, with
// the command line by which it can be started again, and left to the user.
func (c *cluster) wait(ctx context.Context) error {
	ended := make(chan *child, len(c.agents)+1)
	for _, p := range append([]*child{c.server}, c.agents...) {
		c.spawner.children.Go(func() {
			select {
			case <-p.done:
				ended <- p
			case <-ctx.Done():
			}
		})
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case p := <-ended:
			line := shellescape.QuoteCommand(append([]string{p.cmd.Path}, p.cmd.Args[1:]...))
			if _, err := fmt.Fprintf(c.cfg.out, "%s ended (%v); start it again with: %s\n", p.name, p.cmd.ProcessState, line); err != nil {
				return err
			}
		}
	}
}

// close stops the agents, their pods, the server and the network, in this order,
// and waits for all of it.
func (c *cluster) close() error {
	var errs []error
	var agents errgroup.Group
	for _, a := range c.agents {
		agents.Go(a.stop)
	}
	errs = append(errs, agents.Wait())
	errs = append(errs, stopPods(c.cfg.dir))
	if c.server != nil {
		errs = append(errs, c.server.stop())
	}
	if c.network != nil {
		errs = append(errs, c.network.Close(context.Background()))
	}
	c.endSpawn()
	c.unlock()
	return errors.Join(errs...)
}
