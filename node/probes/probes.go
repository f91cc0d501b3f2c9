// Package probes asks containers how they are.
//
// Once makes one attempt of a probe: a command in the container, an HTTP request,
// a TCP connection or a call of gRPC's health service. Run repeats it with the
// delays and thresholds of the probe and tells every change of mind. What
// follows from a result, such as a restart or a condition, is not decided here.
package probes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// maxOutput bounds what is kept of a probe's output.
const maxOutput = 10 << 10

// A Target is the container to be probed.
type Target struct {
	// Exec runs argv in the container and writes its output. Required for exec
	// probes.
	Exec func(ctx context.Context, argv []string, out *Output) (exit int, err error)
	// Dial connects to a port of the pod. Used where the probe names no host.
	Dial func(ctx context.Context, port uint16) (net.Conn, error)
	// Host is the address of the pod, for the Host header of requests.
	Host string
	// Ports are the container's, by which named ports are found.
	Ports []corev1.ContainerPort
}

// An Output keeps the first 10 KiB written to it and discards the rest.
type Output struct{ buf bytes.Buffer }

// Write never fails.
func (o *Output) Write(p []byte) (int, error) {
	if room := maxOutput - o.buf.Len(); room > 0 {
		o.buf.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

// String returns what was kept.
func (o *Output) String() string { return o.buf.String() }

// Once makes one attempt. ok is the verdict, and output says why in the words
// that kubectl describe shows. err is non-nil when there is no verdict because
// the attempt could not be made at all.
func Once(ctx context.Context, p *corev1.Probe, t Target) (ok bool, output string, err error) {
	v, err := once(ctx, p, t)
	return v.ok, v.output, err
}

// A verdict is what one attempt says.
type verdict struct {
	ok     bool
	warned bool // ok, but output is a warning
	output string
}

func once(ctx context.Context, p *corev1.Probe, t Target) (v verdict, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout(p))
	defer cancel()
	switch {
	case p.Exec != nil:
		v.ok, v.output, err = t.exec(ctx, p.Exec.Command)
	case p.HTTPGet != nil:
		return t.http(ctx, p.HTTPGet)
	case p.TCPSocket != nil:
		v.ok, v.output, err = t.tcp(ctx, p.TCPSocket)
	case p.GRPC != nil:
		v.ok, v.output, err = t.grpc(ctx, p.GRPC)
	default:
		err = errors.New("probe has no action")
	}
	return v, err
}

func timeout(p *corev1.Probe) time.Duration {
	return time.Duration(max(p.TimeoutSeconds, 1)) * time.Second
}

func (t Target) exec(ctx context.Context, argv []string) (bool, string, error) {
	var out Output
	exit, err := t.Exec(ctx, argv, &out)
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return false, fmt.Sprintf("command timed out: %q timed out", argv), nil
	case err != nil:
		return false, "", fmt.Errorf("run probe command: %w", err)
	}
	return exit == 0, out.String(), nil
}

func (t Target) tcp(ctx context.Context, a *corev1.TCPSocketAction) (bool, string, error) {
	port, err := t.port(a.Port)
	if err != nil {
		return false, "", err
	}
	conn, err := t.dial(ctx, a.Host, port)
	if err != nil {
		return false, err.Error(), nil
	}
	return true, "", errors.Join(conn.Close())
}

// dial connects to a host the probe names, or else to the pod.
func (t Target) dial(ctx context.Context, host string, port uint16) (net.Conn, error) {
	if host == "" {
		return t.Dial(ctx, port)
	}
	return new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
}

// port resolves a port's number or name.
func (t Target) port(p intstr.IntOrString) (uint16, error) {
	n := p.IntValue()
	if p.Type == intstr.String {
		for _, c := range t.Ports {
			if c.Name == p.StrVal {
				n = int(c.ContainerPort)
			}
		}
	}
	if n < 1 || n > 65535 {
		return 0, fmt.Errorf("port %q is no port of the container", p.String())
	}
	return uint16(n), nil
}
