// Systems: what is compared, each with its processes and a target of its own.

package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"
)

// patience bounds every single step of a connection of a measurement: what takes
// that long hangs.
const patience = 30 * time.Second

// A system is one way to the target, ready to be measured.
type system struct {
	name    string
	dial    func(context.Context) (net.Conn, error)
	target  *target
	control *process // nil for direct, as is node
	node    *process
	more    *process // further agents; nil for most
	note    string   // about it, for people
}

// start starts a system of that name. On error nothing of it is left.
func (r *run) start(ctx context.Context, name string) (_ *system, err error) {
	s := &system{name: name}
	if s.target, err = startTarget(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	switch name {
	case Direct:
		s.dial = dialTCP(s.target.addr())
	case Relay:
		err = r.startRelay(ctx, s)
	case SSH:
		err = r.startSSH(ctx, s, "", 1)
	default:
		err = r.startTunnel(ctx, s, "")
	}
	return s, err
}

func (r *run) startRelay(ctx context.Context, s *system) (err error) {
	o := order{Dir: r.dir, To: s.target.addr()}
	if s.node, err = launch(ctx, r.cfg.Command, relayNode, o); err != nil {
		return err
	}
	o.To = s.node.first.Addr
	if s.control, err = launch(ctx, r.cfg.Command, relayControl, o); err != nil {
		return err
	}
	s.dial = dialTCP(s.control.first.Addr)
	return nil
}

// startTunnel starts a control process and one with an agent. Each instance of a
// system has a name of its own.
func (r *run) startTunnel(ctx context.Context, s *system, instance string) (err error) {
	o := order{Dir: r.dir, Transport: s.name, Socket: filepath.Join(r.dir, s.name+instance+".sock")}
	if s.control, err = launch(ctx, r.cfg.Command, control, o); err != nil {
		return err
	}
	s.dial = dialConnect("unix", o.Socket, s.target.addr())
	if s.node, err = r.launchAgents(ctx, s, 1, 1); err != nil {
		return err
	}
	_, err = s.control.ask(doWait, 1)
	return err
}

// launchAgents starts a process with agents that connect to s.
func (r *run) launchAgents(ctx context.Context, s *system, first, count int) (*process, error) {
	p, err := launch(ctx, r.cfg.Command, node, order{
		Dir: r.dir, Transport: s.name, To: s.control.first.Addr, First: first, Count: count,
	})
	if err != nil {
		return nil, err
	}
	if _, err := p.ask(doWait, count); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// startSSH starts an sshd, and a control process that has made one of so many
// connections to it.
func (r *run) startSSH(ctx context.Context, s *system, instance string, connections int) (err error) {
	if s.node, err = launch(ctx, r.cfg.Command, sshNode, order{Dir: r.dir}); err != nil {
		return err
	}
	s.note = "ssh: the node's side is " + s.node.first.Kind
	o := order{
		Dir: r.dir, Socket: filepath.Join(r.dir, s.name+instance+".sock"),
		To: s.node.first.Addr, User: s.node.first.User, Count: connections,
	}
	if s.control, err = launch(ctx, r.cfg.Command, sshControl, o); err != nil {
		return err
	}
	s.dial = dialConnect("unix", o.Socket, s.target.addr())
	_, err = s.control.ask(doWait, 1)
	return err
}

// close ends the system's processes, control first, which has most to say
// goodbye to.
func (s *system) close() error {
	var errs []error
	for _, p := range []*process{s.control, s.node, s.more} {
		if p != nil {
			errs = append(errs, p.close())
		}
	}
	if s.target != nil {
		s.target.close()
	}
	return errors.Join(errs...)
}

func dialTCP(addr string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", addr)
	}
}

// dialConnect asks a CONNECT front end for the port of target at the first node.
func dialConnect(network, front, target string) func(context.Context) (net.Conn, error) {
	_, port, _ := net.SplitHostPort(target) // of a listener
	ask := []byte("CONNECT " + net.JoinHostPort(nodeName(1), port) + " HTTP/1.1\r\nHost: " + nodeName(1) + "\r\n\r\n")
	return func(ctx context.Context) (net.Conn, error) {
		c, err := (&net.Dialer{Timeout: patience}).DialContext(ctx, network, front)
		if err != nil {
			return nil, err
		}
		if err := handshake(c, ask); err != nil {
			_ = c.Close()
			return nil, err
		}
		return c, nil
	}
}

func handshake(c net.Conn, ask []byte) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := c.Write(ask); err != nil {
		return err
	}
	r := bufio.NewReaderSize(c, 1024)
	resp, err := http.ReadResponse(r, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return fmt.Errorf("read answer to CONNECT: %w", err)
	}
	_ = resp.Body.Close() // there is none that anybody wants
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("CONNECT: %s (%s)", resp.Status, strings.TrimSpace(resp.Header.Get("Proxy-Status")))
	}
	if r.Buffered() > 0 {
		return errors.New("CONNECT: the target spoke first")
	}
	return c.SetDeadline(time.Time{})
}
