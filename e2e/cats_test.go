// Many streams at a time: what is written into cat comes back.

package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
)

// startCats execs cat n times in two pods, one on each node.
func startCats(t *testing.T, c *cluster, n int) (all loads) {
	t.Helper()
	for _, node := range []string{"node-1", "node-2"} {
		pod, spec := on(node, "cats")
		c.podWith(t, pod, "", spec, "sleep", "10000")
	}
	for i := range n {
		all = append(all, startCat(t, c, fmt.Sprintf("cats-node-%d", 1+i%2), i))
	}
	return all
}

// startCat sends a line, waits until it is back, and so on.
func startCat(t *testing.T, c *cluster, pod string, i int) load {
	t.Helper()
	url := c.client.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name(pod).SubResource("exec").VersionedParams(&corev1.PodExecOptions{
		Stdin: true, Stdout: true, Command: []string{"cat"},
	}, scheme.ParameterCodec).URL()
	e, err := remotecommand.NewWebSocketExecutor(c.rest, "GET", url.String())
	must(t, err)
	in, stdin := io.Pipe()
	stdout, out := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := e.StreamWithContext(context.WithoutCancel(t.Context()), remotecommand.StreamOptions{Stdin: in, Stdout: out})
		_ = in.CloseWithError(io.ErrClosedPipe)
		_ = out.Close()
		ended <- err
	}()
	var count atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	spoke := make(chan error, 1)
	go func() {
		spoke <- exchangeLines(ctx, stdin, stdout, i, &count)
		_ = stdin.Close()
	}()
	return load{
		name: fmt.Sprintf("exec cat %d", i), count: count.Load,
		finish: func() error {
			stop()
			return errors.Join(<-spoke, <-ended)
		},
		done: func() string { return fmt.Sprintf("%d lines came back", count.Load()) },
	}
}

func exchangeLines(ctx context.Context, stdin io.Writer, stdout io.Reader, i int, count *atomic.Int64) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	back := bufio.NewReader(stdout)
	for ctx.Err() == nil {
		line := fmt.Sprintf("stream %d line %d\n", i, count.Load())
		if _, err := io.WriteString(stdin, line); err != nil {
			return fmt.Errorf("write line %d: %w", count.Load(), err)
		}
		if got, err := back.ReadString('\n'); err != nil || got != line {
			return fmt.Errorf("line %d came back as %q: %w", count.Load(), got, err)
		}
		count.Add(1)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	return nil
}
