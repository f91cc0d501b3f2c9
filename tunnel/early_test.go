package tunnel_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// begin starts an early dial and returns its stream, the request as the far side
// sees it, and where the outcome goes.
func begin(t *testing.T, ctx context.Context, early string) (st tunnel.Stream, r *tunnel.Request, outcome chan error) {
	t.Helper()
	agent, server := pair(t)
	outcome = make(chan error, 2) // room for one too many
	st, err := tunnel.Dial{Network: "tcp", Addr: "a:1", Name: "a%n:1"}.Start(ctx, server, func(err error) { outcome <- err })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	if _, err = io.WriteString(st, early); err != nil {
		t.Fatal(err)
	}
	far, err := agent.Accept(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if r, err = tunnel.ReadRequest(far); err != nil {
		t.Fatal(err)
	}
	return st, r, outcome
}

// told is the outcome, of which there must be one and no more.
func told(t *testing.T, outcome chan error) error {
	t.Helper()
	synctest.Wait()
	if n := len(outcome); n != 1 {
		t.Fatalf("told %d times", n)
	}
	return <-outcome
}

func TestEarlyBytesArriveFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, r, outcome := begin(t, t.Context(), "hello ")
		if r.Addr != "a:1" || r.Timeout != tunnel.DefaultDialTimeout {
			t.Errorf("request: %+v", r)
		}
		far, err := r.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(st, "again"); err != nil {
			t.Error(err)
		}
		if err := st.CloseWrite(); err != nil {
			t.Error(err)
		}
		if got, err := io.ReadAll(far); string(got) != "hello again" || err != nil {
			t.Errorf("far side read %q, %v", got, err)
		}
		if len(outcome) != 0 {
			t.Error("told before the answer was read")
		}
		if _, err := io.WriteString(far, "welcome"); err != nil {
			t.Error(err)
		}
		_ = far.Close()
		if got, err := io.ReadAll(st); string(got) != "welcome" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		_ = st.Close()
		if err := told(t, outcome); err != nil {
			t.Errorf("told %v", err)
		}
	})
}

// A dial that the far side refuses says so wherever the caller looks next, in the
// words of one that was waited for.
func TestEarlyDialRejected(t *testing.T) {
	for name, use := range map[string]func(st tunnel.Stream) error{
		"read":        func(st tunnel.Stream) error { _, err := st.Read(make([]byte, 9)); return err },
		"write":       func(st tunnel.Stream) error { _, err := st.Write(make([]byte, 1<<20)); return err },
		"close write": func(st tunnel.Stream) error { return errors.Join(st.CloseWrite(), st.CloseWrite()) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st, r, outcome := begin(t, t.Context(), "secret")
				if err := r.Reject(tunnel.Refused, "connect: connection refused"); err != nil {
					t.Error(err)
				}
				err := use(st)
				if name == "close write" { // a half-close may well go through
					_, err = st.Read(make([]byte, 1))
				}
				var de *tunnel.DialError
				if !errors.As(err, &de) || !errors.Is(err, syscall.ECONNREFUSED) || err.Error() != "dial a%n:1: connect: connection refused" {
					t.Fatalf("%v", err)
				}
				if _, err = st.Read(make([]byte, 1)); !errors.Is(err, tunnel.Refused) {
					t.Errorf("read after that: %v", err)
				}
				if err := told(t, outcome); !errors.Is(err, tunnel.Refused) {
					t.Errorf("told %v", err)
				}
			})
		})
	}
}

func TestEarlyDialDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		st, r, outcome := begin(t, ctx, "x")
		cancel() // bounds the opening only
		start := time.Now()
		if err := st.SetDeadline(start.Add(3 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 3*time.Second {
			t.Fatalf("%v after %v", err, time.Since(start))
		}
		if n := len(outcome); n != 0 {
			t.Error("the caller's deadline decided the dial")
		}
		// Interrupted, set again, and still there when the answer comes.
		time.AfterFunc(time.Second, func() { _ = st.SetReadDeadline(time.Now().Add(2 * time.Second)) })
		time.AfterFunc(2*time.Second, func() {
			if _, err := r.Accept(); err != nil {
				t.Error(err)
			}
		})
		if err := st.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != 6*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if err := told(t, outcome); err != nil {
			t.Errorf("told %v", err)
		}
	})
}

func TestEarlyAnswerIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		st, _, outcome := begin(t, ctx, "x")
		start := time.Now()
		if _, err := st.Read(make([]byte, 1)); !errors.Is(err, tunnel.Timeout) || time.Since(start) != 10*time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
		if err := told(t, outcome); !errors.Is(err, tunnel.Timeout) {
			t.Errorf("told %v", err)
		}
	})
}

// An answer that came in time is an answer, however late it is read.
func TestEarlyAnswerReadLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, r, outcome := begin(t, t.Context(), "x")
		far, err := r.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(far, "y")
		time.Sleep(time.Hour) // the bubble's clock
		if n, err := st.Read(make([]byte, 9)); n != 1 || err != nil {
			t.Errorf("%d, %v", n, err)
		}
		if err := told(t, outcome); err != nil {
			t.Errorf("told %v", err)
		}
	})
}

func TestEarlyDialEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		do   func(st tunnel.Stream, r *tunnel.Request)
		want error // that the reader sees and that is told
	}{
		"far side gives up": {func(_ tunnel.Stream, r *tunnel.Request) { _ = r.Reject(tunnel.Internal, strings.Repeat("x", 99)) }, tunnel.Internal},
		"closed":            {func(st tunnel.Stream, _ *tunnel.Request) { _ = st.Close() }, net.ErrClosed},
		"aborted":           {func(st tunnel.Stream, _ *tunnel.Request) { _ = tunnel.Abort(st) }, net.ErrClosed},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st, r, outcome := begin(t, t.Context(), "x")
				read := make(chan error, 1)
				go func() {
					_, err := st.Read(make([]byte, 1))
					read <- err
				}()
				synctest.Wait()
				tt.do(st, r)
				if err := <-read; !errors.Is(err, tt.want) {
					t.Errorf("read: %v", err)
				}
				want := tt.want
				if errors.Is(want, net.ErrClosed) {
					want = context.Canceled
				}
				if err := told(t, outcome); !errors.Is(err, want) {
					t.Errorf("told %v", err)
				}
			})
		})
	}
}

// A session that dies under an early dial, and a peer that answers with nonsense.
func TestEarlyDialLost(t *testing.T) {
	for name, answer := range map[string]string{"cut": "", "nonsense": "GET / HTTP/1.1\r\n", "not an answer": "\x01\x06\x00\x08\x00\x00\x00\x00\x00\x00\x00\x00"} {
		t.Run(name, func(t *testing.T) {
			a, b := memnet.Pipe(memnet.Addr("a"), memnet.Addr("b"))
			outcome := make(chan error, 2)
			st, err := tunnel.Dial{Network: "tcp", Addr: "a:1"}.Start(t.Context(), opener{a}, func(err error) { outcome <- err })
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tunnel.ReadRequest(b); err != nil {
				t.Fatal(err)
			}
			_, _ = io.WriteString(b, answer)
			_ = b.Close()
			want := error(tunnel.ErrFrame)
			if answer == "" {
				want = tunnel.Lost
			}
			var de *tunnel.DialError
			if _, err := st.Read(make([]byte, 1)); !errors.Is(err, want) || !errors.As(err, &de) || errors.Is(err, io.EOF) {
				t.Errorf("read: %v", err)
			}
			if err := <-outcome; !errors.Is(err, want) {
				t.Errorf("told %v", err)
			}
			_ = st.Close()
		})
	}
}

// An opener is a session of one stream.
type opener struct{ tunnel.Stream }

func (o opener) Open(context.Context) (tunnel.Stream, error)   { return o.Stream, nil }
func (o opener) Accept(context.Context) (tunnel.Stream, error) { return nil, tunnel.ErrSessionClosed }
func (o opener) Context() context.Context                      { return context.Background() }
func (o opener) Peer() tunnel.Peer                             { return tunnel.Peer{} }
func (o opener) Dismiss(*tunnel.Goodbye) error                 { return o.Close() }
func (o opener) Link() tunnel.LinkState                        { return tunnel.LinkState{} }
func (o opener) Tell(func(tunnel.LinkState))                   {}
func (o opener) Move(context.Context) error                    { return tunnel.ErrSessionClosed }

// TestEarlyTargetResets: a splice ends when the target resets, though its client reads nothing.
func TestEarlyTargetResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, r, _ := begin(t, t.Context(), "hello")
		far, err := r.Accept()
		if err != nil {
			t.Fatal(err)
		}
		near, client := memnet.Pipe(memnet.Addr("hub"), memnet.Addr("client"))
		spliced := make(chan error, 1)
		go func() {
			_, err := tunnel.Splice(t.Context(), near, &tunnel.Tap{Conn: st})
			spliced <- err
		}()
		_ = far.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := io.WriteString(far, strings.Repeat("x", 1<<20)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a client that reads nothing takes a megabyte: %v", err)
		}
		_ = tunnel.Abort(far)
		synctest.Wait()
		select {
		case <-spliced:
		default:
			t.Error("the splice goes on")
			_ = client.Close()
			<-spliced
		}
	})
}

// TestEarlyClientResets: a client that resets while the target is dialed gives the dial up.
func TestEarlyClientResets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st, r, _ := begin(t, t.Context(), "hello")
		near, client := memnet.Pipe(memnet.Addr("hub"), memnet.Addr("client"))
		spliced := make(chan struct{})
		go func() {
			defer close(spliced)
			_, _ = tunnel.Splice(t.Context(), struct{ net.Conn }{near}, st) // the client is gone
		}()
		synctest.Wait()
		_ = tunnel.Abort(client)
		synctest.Wait()
		select {
		case <-spliced:
		default:
			t.Error("the splice goes on")
			_ = st.Close()
			_ = r.Reject(tunnel.Refused, "no")
			<-spliced
		}
	})
}
