package tunnel_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
	"github.com/hawser-project/hawser/tunnel/tunneltest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is a session whose two ends the test closes.
func pair(t *testing.T) (agent, server tunnel.Session) {
	t.Helper()
	agent, server = tunneltest.Pair(tunnel.Peer{Addr: memnet.Addr("agent")}, tunnel.Peer{Addr: memnet.Addr("server")}, tunnel.Options{})
	t.Cleanup(func() { _ = agent.Close() })
	return agent, server
}

// greet brings up the control stream.
func greet(t *testing.T, agent, server tunnel.Session, w tunnel.Welcome) (a, s *tunnel.Control) {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		g, err := tunnel.Await(t.Context(), server)
		if err != nil {
			t.Errorf("await: %v", err)
			return
		}
		if g.Node != "node-1" || g.Instance != 4 || g.Sequence != 2 || g.Meta["version"] != "v1" {
			t.Errorf("hello: %+v", g.Hello)
		}
		s = g.Control(w)
		if err := s.Welcome(t.Context()); err != nil {
			t.Errorf("welcome: %v", err)
		}
	})
	a, got, err := tunnel.Greet(t.Context(), agent, tunnel.Hello{Node: "node-1", Instance: 4, Sequence: 2, Meta: tunnel.Meta{"version": "v1"}})
	wg.Wait()
	if err != nil || got.Session != w.Session {
		t.Fatalf("greet: %+v, %v", got, err)
	}
	return a, s
}

// run runs both ends until the returned func is called, and gives their errors.
func run(t *testing.T, a, s *tunnel.Control) (aErr, sErr chan error, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	aErr, sErr = make(chan error, 1), make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() { aErr <- a.Run(ctx, nil) })
	wg.Go(func() { sErr <- s.Run(ctx, nil) })
	return aErr, sErr, func() { cancel(); wg.Wait() }
}

// On a quiet day there is a ping now and then, and more seldom where the session itself
// tells the round trip.
func TestQuietDay(t *testing.T) {
	for name, tt := range map[string]struct {
		made  func(tunnel.Session) tunnel.Session
		pings int
	}{
		"a session":              {func(s tunnel.Session) tunnel.Session { return s }, 6*60*24 + 1},
		"one that tells its own": {func(s tunnel.Session) tunnel.Session { return &parkedSession{staller: staller{Session: s}} }, 25},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				agent, server := pair(t)
				a, s := greet(t, tt.made(agent), tt.made(server), tunnel.Welcome{Session: 1})
				ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour+time.Second) // the bubble's clock
				defer cancel()
				var wg sync.WaitGroup
				for _, c := range []*tunnel.Control{a, s} {
					wg.Go(func() {
						n := 0
						if err := c.Run(ctx, func(time.Duration) { n++ }); err != nil || n != tt.pings {
							t.Errorf("%d round trips, %v; want %d", n, err, tt.pings)
						}
					})
				}
				wg.Wait()
			})
		})
	}
}

// A staller opens streams whose connection can be stalled.
type staller struct {
	tunnel.Session
	opened []tunnel.Stream
}

func (s *staller) Open(ctx context.Context) (tunnel.Stream, error) {
	st, err := s.Session.Open(ctx)
	s.opened = append(s.opened, st)
	return st, err
}

func (s *staller) stall() {
	for _, st := range s.opened {
		st.(interface{ Stall(bool) }).Stall(true)
	}
}

func TestDrainAndGoodbye(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent, server := pair(t)
		a, s := greet(t, agent, server, tunnel.Welcome{Session: 1})
		aErr, sErr, stop := run(t, a, s)
		defer stop()
		if err := s.Drain(t.Context(), tunnel.Draining, "shutting down"); err != nil {
			t.Fatal(err)
		}
		<-a.Draining()
		if err := s.Drain(t.Context(), tunnel.Draining, "again"); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if err := s.HangUp(&tunnel.Goodbye{Code: tunnel.Replaced, Text: "a newer session"}); err != nil {
			t.Errorf("hang up: %v", err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("hanging up took %v", d)
		}
		var bye *tunnel.Goodbye
		if err := <-aErr; !errors.As(err, &bye) || bye.Code != tunnel.Replaced || bye.Text != "a newer session" {
			t.Errorf("agent's end: %v", err)
		}
		if err := <-sErr; !errors.Is(err, tunnel.Lost) {
			t.Errorf("server's end: %v", err)
		}
		if _, err := agent.Open(t.Context()); err == nil {
			t.Error("the session outlived the goodbye")
		}
	})
}

func TestHangUpOnStalledLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent, server := pair(t)
		stalled := &staller{Session: agent}
		a, _ := greet(t, stalled, server, tunnel.Welcome{Session: 1})
		stalled.stall()
		start := time.Now()
		if err := a.HangUp(&tunnel.Goodbye{Code: tunnel.Draining, Text: "bye"}); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > 3*time.Second {
			t.Errorf("took %v", d)
		}
		if server.Context().Err() == nil {
			t.Error("session is still open")
		}
	})
}

func TestRefusedGreeting(t *testing.T) {
	agent, server := pair(t)
	var wg sync.WaitGroup
	wg.Go(func() {
		g, err := tunnel.Await(t.Context(), server)
		if err != nil {
			t.Errorf("await: %v", err)
			return
		}
		if err := g.Refuse(&tunnel.Goodbye{Code: tunnel.Denied, Text: "not you"}); err != nil {
			t.Errorf("refuse: %v", err)
		}
	})
	_, _, err := tunnel.Greet(t.Context(), agent, tunnel.Hello{Node: "x"})
	var bye *tunnel.Goodbye
	if !errors.As(err, &bye) || bye.Code != tunnel.Denied || bye.Text != "not you" || !errors.Is(err, tunnel.Denied) {
		t.Errorf("greet: %v", err)
	}
	_ = agent.Close() // as whoever was refused would
	wg.Wait()
}

func TestGreetingIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		agent, server := pair(t)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() {
			if _, _, err := tunnel.Greet(ctx, agent, tunnel.Hello{}); tunnel.CodeOf(err) != tunnel.Timeout {
				t.Errorf("server without a word: %v", err)
			}
		})
		wg.Wait()
		mute, err := agent.Open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer mute.Close()
		ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := server.Accept(ctx); err != nil { // the one that was given up
			t.Fatal(err)
		}
		if _, err := tunnel.Await(ctx, server); tunnel.CodeOf(err) != tunnel.Timeout {
			t.Errorf("agent without a word: %v", err)
		}
	})
}

// From the target's system call at one end to the dialer's error at the other.
func TestDialErrorsTravel(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		code tunnel.Code
		is   error
	}{
		{"refused", &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}, tunnel.Refused, syscall.ECONNREFUSED},
		{"unreachable", &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", syscall.ENETUNREACH)}, tunnel.Unreachable, syscall.EHOSTUNREACH},
		{"timeout", &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}, tunnel.Timeout, os.ErrDeadlineExceeded},
		{"denied", &tunnel.DialError{Code: tunnel.Denied, Text: "policy"}, tunnel.Denied, tunnel.Denied},
		{"unresolved", &net.DNSError{Err: "no such host", IsNotFound: true}, tunnel.Unresolved, tunnel.Unresolved},
		{"draining", tunnel.Draining, tunnel.Draining, tunnel.Draining},
		{"unknown", errors.New("odd"), tunnel.Internal, tunnel.Internal},
	} {
		t.Run(tc.name, func(t *testing.T) {
			agent, server := pair(t)
			var wg sync.WaitGroup
			wg.Go(func() {
				_ = tunneltest.ServeRequests(t.Context(), agent, func(ctx context.Context, r *tunnel.Request) {
					_, err := tunnel.Answer(ctx, r, func(context.Context, string, string) (net.Conn, error) { return nil, tc.err })
					if !errors.Is(err, tc.err) {
						t.Errorf("answer returned %v", err)
					}
				})
			})
			_, err := tunnel.Connect(t.Context(), server, "tcp", "target:1")
			var de *tunnel.DialError
			if !errors.As(err, &de) || de.Code != tc.code || !errors.Is(err, tc.is) || de.Addr != "target:1" {
				t.Errorf("connect: %v", err)
			}
			_ = agent.Close()
			wg.Wait()
		})
	}
}

func TestConnectIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, server := pair(t)
		start := time.Now()
		_, err := tunnel.Connect(t.Context(), server, "tcp", "nobody-answers:1")
		if !errors.Is(err, tunnel.Timeout) || time.Since(start) != tunnel.DefaultDialTimeout {
			t.Errorf("without a deadline: %v after %v", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		_, err = tunnel.Connect(ctx, server, "tcp", "nobody-answers:1")
		if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("with one: %v after %v", err, time.Since(start))
		}
		ctx, cancel2 := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel2)
		if _, err = tunnel.Connect(ctx, server, "tcp", "nobody-answers:1"); !errors.Is(err, context.Canceled) || !errors.Is(err, tunnel.Canceled) {
			t.Errorf("canceled: %v", err)
		}
	})
}

func TestRequestIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
		defer near.Close()
		start := time.Now()
		if _, err := tunnel.ReadRequest(far); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a mute opener: %v", err)
		}
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("waited %v", d)
		}
		if _, err := near.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("the mute opener's stream: %v", err)
		}
	})
}

func TestNonsenseIsAnswered(t *testing.T) {
	near, far := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
	if _, err := io.WriteString(near, "GET / HTTP/1.1\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := tunnel.ReadRequest(far); !errors.Is(err, tunnel.ErrFrame) {
		t.Errorf("read: %v", err)
	}
	if got, _ := io.ReadAll(near); !strings.Contains(string(got), "malformed frame") {
		t.Errorf("answer: %q", got)
	}
}

// The addresses of the target's connection come with the answer.
func TestAnswerTellsAddresses(t *testing.T) {
	agent, server := pair(t)
	answered := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = tunneltest.ServeRequests(t.Context(), agent, func(ctx context.Context, r *tunnel.Request) {
			defer close(answered)
			if r.Timeout <= 0 || r.Timeout > tunnel.DefaultDialTimeout || r.Meta["who"] != "me" {
				t.Errorf("request: %+v", r)
			}
			a, b := memnet.Pipe(memnet.Addr("here"), memnet.Addr("there"))
			_ = b.Close()
			_, err := tunnel.Answer(ctx, r, func(context.Context, string, string) (net.Conn, error) { return a, nil })
			if err != nil {
				t.Errorf("answer: %v", err)
			}
		})
	})
	st, err := tunnel.Dial{Network: "tcp", Addr: "x:1", Meta: tunnel.Meta{"who": "me"}}.Connect(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(st); err != nil || len(got) > 0 {
		t.Errorf("%q, %v", got, err)
	}
	_ = st.Close()
	<-answered
	_ = agent.Close()
	wg.Wait()
}

// A broken session is one whose Accept fails.
type broken struct {
	tunnel.Session
	why       error
	dismissed bool
}

func (b *broken) Accept(context.Context) (tunnel.Stream, error) { return nil, b.why }

func (b *broken) Dismiss(*tunnel.Goodbye) error {
	b.dismissed = true
	return nil
}

// TestServingEndsWithSession: that a session has ended, for whatever reason, is no error of
// serving it. A session that cannot be used, although it goes on, is dismissed.
func TestServingEndsWithSession(t *testing.T) {
	for _, tc := range []struct {
		why  error
		want bool
	}{
		{tunnel.ErrSessionClosed, false},
		{fmt.Errorf("%w: peer closed the connection", tunnel.Lost), false},
		{fmt.Errorf("%w: nothing heard for 40s", tunnel.Dead), false},
		{fmt.Errorf("peer violated the protocol: %w, %w", tunnel.Internal, syscall.ECONNRESET), false},
		{errors.New("no such method"), true},
	} {
		s := &broken{why: tc.why}
		err := tunnel.StartServing(t.Context(), s, nil)()
		if got := err != nil; got != tc.want || s.dismissed != tc.want {
			t.Errorf("%v: served with %v, dismissed: %v", tc.why, err, s.dismissed)
		}
	}
}
