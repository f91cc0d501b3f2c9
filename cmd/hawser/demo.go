// hawser demo: the guided tour.

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/spf13/cobra"

	"github.com/hawser-project/hawser/cmd/internal/setup"
	"github.com/hawser-project/hawser/cmd/lab"
)

func newDemo() *cobra.Command {
	return &cobra.Command{
		Use:   "demo",
		Short: "The guided tour: a cluster, a pod on a node behind NAT, logs, exec, port-forward",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			dir, err := os.MkdirTemp("", "hawser-demo-")
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
			t := &tour{dir: dir, out: cmd.OutOrStdout()}
			return t.run(cmd.Context())
		},
	}
}

// A tour starts a cluster in dir and shows what it can do. Every step is a real
// command whose failure ends the tour.
type tour struct {
	dir  string
	out  io.Writer
	self string
	env  []string
	port int // of the pod
}

func (t *tour) say(format string, args ...any) {
	fmt.Fprintf(t.out, "\n\x1b[1m"+format+"\x1b[0m\n", args...)
}

func (t *tour) run(ctx context.Context) (err error) {
	if t.self, err = os.Executable(); err != nil {
		return err
	}
	port, err := setup.FreePort(ctx)
	if err != nil {
		return err
	}
	// Without namespaces the pod shares this machine's ports.
	if t.port, err = setup.FreePort(ctx); err != nil {
		return err
	}
	cfg := clusterConfig{dir: t.dir, nodes: 2, port: port, netns: true, out: t.out}
	if missing := lab.Check(); missing != nil {
		cfg.netns = false
		t.say("NOTE: the nodes of this tour are plain processes, not behind NATs: %v.", missing)
	}
	t.say("Starting a server and two nodes (as with: hawser up --nodes 2%s) …", map[bool]string{true: " --netns"}[cfg.netns])
	began := time.Now()
	c, err := startCluster(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() {
		t.say("Stopping everything.")
		err = errors.Join(err, c.close())
	}()
	t.env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig())
	fmt.Fprintf(t.out, "ready after %.1f s\n", time.Since(began).Seconds())
	return t.steps(ctx, cfg.netns)
}

func (t *tour) steps(ctx context.Context, netns bool) error {
	where := "The nodes joined with a token, got certificates of their own, and keep one connection to the server."
	if netns {
		where += "\nEach is behind a NAT: nothing can connect to it."
	}
	t.say("%s", where)
	if err := t.kubectl(ctx, "", "get", "nodes", "-o", "wide"); err != nil {
		return err
	}
	t.say("A pod: its container is a real process of the node.")
	manifest, err := t.manifest()
	if err != nil {
		return err
	}
	if err := t.kubectl(ctx, manifest, "apply", "-f", "-"); err != nil {
		return err
	}
	if err := t.kubectl(ctx, "", "wait", "--for=condition=Ready", "pod/demo", "--timeout=60s"); err != nil {
		// What went wrong is in the pod's status and events.
		return errors.Join(err, t.kubectl(ctx, "", "describe", "pod", "demo"))
	}
	if err := t.kubectl(ctx, "", "get", "pods", "-o", "wide"); err != nil {
		return err
	}
	t.say("Logs, through the tunnel:")
	if err := t.kubectl(ctx, "", "logs", "demo", "--tail=3"); err != nil {
		return err
	}
	t.say("A command in the pod, and its exit code:")
	if err := t.kubectl(ctx, "", "exec", "demo", "--", "sh", "-c", "echo hello from $HOSTNAME, process $$"); err != nil {
		return err
	}
	if err := t.exitCode(ctx, 42); err != nil {
		return err
	}
	t.say("A port of the pod, on this machine:")
	if err := t.portForward(ctx); err != nil {
		return err
	}
	t.say("And what the cluster wrote down:")
	return t.kubectl(ctx, "", "get", "events", "--field-selector", "involvedObject.kind=Pod")
}

// demoPod is a pod whose container is this very program: it prints a line a
// second and answers HTTP. The program is a volume, because it may be where a
// container has files of its own, such as /tmp.
var demoPod = template.Must(template.New("pod").Parse(`apiVersion: v1
kind: Pod
metadata:
  name: demo
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: demo
    image: none
    command: [{{.Self}}, demo-pod, --listen, "127.0.0.1:{{.Port}}"]
    ports:
    - containerPort: {{.Port}}
    readinessProbe:
      httpGet:
        host: 127.0.0.1
        port: {{.Port}}
      initialDelaySeconds: 1
      periodSeconds: 1
    volumeMounts:
    - name: program
      mountPath: {{.Self}}
  volumes:
  - name: program
    hostPath:
      path: {{.Self}}
      type: File
`))

func (t *tour) manifest() (string, error) {
	var b strings.Builder
	err := demoPod.Execute(&b, map[string]any{"Self": strconv.Quote(t.self), "Port": t.port})
	return b.String(), err
}

func (t *tour) command(ctx context.Context, args ...string) *exec.Cmd {
	fmt.Fprintf(t.out, "$ hawser kubectl %s\n", strings.Join(args, " "))
	cmd := exec.CommandContext(ctx, t.self, append([]string{"kubectl"}, args...)...)
	cmd.Env = t.env
	return cmd
}

func (t *tour) kubectl(ctx context.Context, stdin string, args ...string) error {
	cmd := t.command(ctx, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), t.out, t.out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("kubectl %s: %w", args[0], err)
	}
	return nil
}

// exitCode shows that kubectl exec ends as the command in the pod does.
func (t *tour) exitCode(ctx context.Context, want int) error {
	cmd := t.command(ctx, "exec", "demo", "--", "sh", "-c", fmt.Sprintf("exit %d", want))
	err := cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != want {
		return fmt.Errorf("kubectl exec ended with %d (%w), want %d", got, err, want)
	}
	fmt.Fprintf(t.out, "exit code %d\n", want)
	return nil
}

// portForward fetches a page from the pod through kubectl port-forward.
func (t *tour) portForward(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := t.command(ctx, "port-forward", "pod/demo", fmt.Sprintf(":%d", t.port))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err = cmd.Start(); err != nil {
		return err
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // ended by us
	}()
	var local int
	if _, err = fmt.Fscanf(stdout, "Forwarding from 127.0.0.1:%d", &local); err != nil {
		return fmt.Errorf("kubectl port-forward: %w: %s", err, stderr.String())
	}
	url := fmt.Sprintf("http://127.0.0.1:%d/", local)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := (&http.Client{Timeout: 30 * time.Second}).Do(req)
	if err != nil {
		return fmt.Errorf("through the port-forward: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("through the port-forward: %s, %w", resp.Status, err)
	}
	fmt.Fprintf(t.out, "$ curl %s\n%s", url, body)
	return nil
}

// newDemoPod is what runs in the demo's pod.
func newDemoPod() *cobra.Command {
	var listen string
	cmd := &cobra.Command{
		Use:    "demo-pod",
		Short:  "What the pod of the demo runs",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintln(cmd.OutOrStdout(), "line 1: still here") // before it is ready, for who looks then
			l, err := (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", listen)
			if err != nil {
				return err
			}
			srv := &http.Server{ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				host, _ := os.Hostname()
				fmt.Fprintf(w, "Hello from a pod that nobody can connect to (%s).\n", host)
			})}
			done := make(chan error, 1)
			go func() { done <- srv.Serve(l) }()
			for i := 2; sleep(cmd.Context(), time.Second) == nil; i++ {
				fmt.Fprintf(cmd.OutOrStdout(), "line %d: still here\n", i)
			}
			err = srv.Close()
			if served := <-done; !errors.Is(served, http.ErrServerClosed) {
				err = errors.Join(err, served)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "127.0.0.1:0", "where to answer HTTP")
	return cmd
}
