package process

// The connections that a shim serves.

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/hawser-project/hawser/node/runtime"
)

// Bounds of one shim. Commands and attached clients leave connections for stop and watch.
const (
	maxConns    = 256
	stopConns   = 8  // beyond maxConns; the last of all serve stop alone
	maxExecs    = 64 // of clients
	maxProbes   = 16 // and hooks
	maxAttached = 128
)

// accept serves the connections of ln until it is closed, and closes those beyond the bound.
func (s *shim) accept(ln net.Listener) {
	for {
		nc, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			// Probably out of descriptors: try again after a pause.
			select {
			case <-time.After(100 * time.Millisecond):
			case <-s.ended:
			}
			continue
		}
		s.mu.Lock()
		onlyStop, full := s.nconns >= maxConns, s.nconns >= maxConns+stopConns
		if !full {
			s.nconns++
		}
		s.mu.Unlock()
		if full {
			_ = nc.Close()
			continue
		}
		s.conns.Go(func() {
			s.serve(&conn{UnixConn: nc.(*net.UnixConn)}, onlyStop)
			s.mu.Lock()
			s.nconns--
			s.mu.Unlock()
		})
	}
}

// serve answers one connection. If onlyStop, it hangs up at any other request than stop.
func (s *shim) serve(c *conn, onlyStop bool) {
	defer c.hangUp()
	defer c.drop()
	_ = c.SetReadDeadline(time.Now().Add(replyTimeout))
	var req request
	if err := c.recv(&req); err != nil || onlyStop && req.Op != opStop {
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	var err error
	switch req.Op {
	case opWatch:
		s.watch(c)
	case opStop:
		s.stop(time.Duration(req.GraceMS) * time.Millisecond)
		s.watch(c)
	case opExec:
		err = s.exec(c, &req)
	case opAttach:
		err = s.attach(c, &req)
	case opResize:
		if err = s.resize(req.Size); err == nil {
			err = c.send(reply{})
		}
	case opStats:
		u := s.usage()
		err = c.send(reply{Usage: &u})
	default:
		err = fmt.Errorf("unknown request %q", req.Op)
	}
	if err != nil {
		_ = c.send(reply{Failure: failureOf(err)})
	}
}

// watch sends the record now, and again when the container has ended. It returns before
// that when the client hangs up.
func (s *shim) watch(c *conn) {
	gone := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(gone)
		var more request // the client sends nothing more
		_ = c.recv(&more)
	})
	defer reading.Wait()
	defer func() { _ = c.CloseRead() }()
	for {
		s.mu.Lock()
		r := s.record
		s.mu.Unlock()
		if c.send(reply{Record: &r}) != nil || r.State == runtime.Exited {
			return
		}
		select {
		case <-s.ended:
		case <-gone:
			return
		}
	}
}
