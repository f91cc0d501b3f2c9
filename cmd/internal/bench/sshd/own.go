// Our own server: direct-tcpip (RFC 4254, section 7.2) and nothing else.

package sshd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
)

// ownUser is who logs in to our own server.
const ownUser = "bench"

// An own server is one of ours.
type own struct {
	listener net.Listener
	config   *ssh.ServerConfig
}

// newOwn makes a server because OpenSSH's cannot be used, for the reason why.
func newOwn(ctx context.Context, dir string, why error) (*Server, error) {
	b, err := os.ReadFile(filepath.Join(dir, HostKey))
	if err != nil {
		return nil, fmt.Errorf("read host key: %w", err)
	}
	host, err := ssh.ParsePrivateKey(b)
	if err != nil {
		return nil, fmt.Errorf("parse host key: %w", err)
	}
	allowed, err := os.ReadFile(filepath.Join(dir, UserKey+".pub"))
	if err != nil {
		return nil, fmt.Errorf("read user's key: %w", err)
	}
	config := &ssh.ServerConfig{PublicKeyCallback: func(c ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if c.User() != ownUser || !bytes.Equal(ssh.MarshalAuthorizedKey(key), allowed) {
			return nil, errors.New("unknown user or key")
		}
		return &ssh.Permissions{}, nil
	}}
	config.AddHostKey(host)
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for ssh: %w", err)
	}
	s := &own{listener: l, config: config}
	return &Server{
		Addr: l.Addr().String(), User: ownUser, Kind: fmt.Sprintf("Go's x/crypto/ssh (no OpenSSH: %v)", why),
		run: s.run, processes: func() []int { return []int{os.Getpid()} },
	}, nil
}

func (s *own) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = s.listener.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		c, err := s.listener.Accept()
		switch {
		case err == nil:
			wg.Go(func() { s.serve(ctx, c) })
		case ctx.Err() != nil:
			return nil
		default:
			return fmt.Errorf("accept ssh: %w", err)
		}
	}
}

// serve serves one connection until it or ctx ends.
func (s *own) serve(ctx context.Context, c net.Conn) {
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	conn, channels, requests, err := ssh.NewServerConn(c, s.config)
	if err != nil {
		_ = c.Close() // the client knows why
		return
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { answerAll(requests) })
	for ch := range channels {
		wg.Go(func() { forward(ctx, ch) })
	}
	_ = conn.Close()
}

// answerAll answers every request, as keep-alives want to be.
func answerAll(requests <-chan *ssh.Request) {
	for r := range requests {
		if r.WantReply {
			_ = r.Reply(false, nil) // a connection that is lost ends the loop
		}
	}
}

// forward is one direct-tcpip channel.
func forward(ctx context.Context, nc ssh.NewChannel) {
	var ask struct {
		Host     string
		Port     uint32
		From     string
		FromPort uint32
	}
	if err := ssh.Unmarshal(nc.ExtraData(), &ask); err != nil || nc.ChannelType() != "direct-tcpip" {
		_ = nc.Reject(ssh.UnknownChannelType, "only direct-tcpip is served")
		return
	}
	if ip, err := netip.ParseAddr(ask.Host); err != nil || !ip.IsLoopback() {
		_ = nc.Reject(ssh.Prohibited, "only loopback is served")
		return
	}
	target, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(ask.Host, strconv.FormatUint(uint64(ask.Port), 10)))
	if err != nil {
		_ = nc.Reject(ssh.ConnectionFailed, "Connection refused")
		return
	}
	c := target.(*net.TCPConn)
	defer func() { _ = c.Close() }() // whoever is at the ends notices
	ch, requests, err := nc.Accept()
	if err != nil {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		ssh.DiscardRequests(requests) // until the channel is closed
		_ = c.SetReadDeadline(time.Unix(1, 0))
	})
	wg.Go(func() {
		_, _ = io.Copy(c, ch) // whoever is at the ends notices
		_ = c.CloseWrite()
	})
	_, _ = io.Copy(ch, c)
	_ = ch.CloseWrite()
	// A client that closes its channel while its target goes on sending ends the
	// target's connection as well.
	_ = ch.Close()
	wg.Wait()
}
