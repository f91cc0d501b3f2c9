// What a transport must pass that carries agents which may be refused.

package tunneltest

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser/tunnel"
)

// RunRefusals runs what every transport must pass: an agent is told why it is refused,
// when it says hello and later.
func RunRefusals(t *testing.T, mk Make) {
	for _, code := range []tunnel.Code{tunnel.Revoked, tunnel.Denied, tunnel.Busy} {
		t.Run(code.String(), func(t *testing.T) {
			why := &tunnel.Goodbye{Code: code, Text: "node was revoked", Retry: 30 * time.Second}
			for _, welcome := range []bool{false, true} {
				a, b := mk(t, tunnel.Options{})
				refused := make(chan error, 1)
				go func() { refused <- refuse(within(t), b, welcome, why) }()
				control, _, err := tunnel.Greet(within(t), a, tunnel.Hello{Node: "n", Instance: 1, Sequence: 1})
				if welcome && err == nil {
					err = control.Run(within(t), nil)
				}
				checkTold(t, err, why)
				_ = a.Close() // before the refusing end has to
				if err := <-refused; err != nil {
					t.Errorf("refuse: %v", err)
				}
			}
		})
	}
}

// refuse ends s at the accepting end, at its hello or once it has been welcomed.
func refuse(ctx context.Context, s tunnel.Session, welcome bool, why *tunnel.Goodbye) error {
	g, err := tunnel.Await(ctx, s)
	if err != nil {
		return err
	}
	if !welcome {
		return g.Refuse(why)
	}
	c := g.Control(tunnel.Welcome{})
	if err := c.Welcome(ctx); err != nil {
		return err
	}
	return c.HangUp(why)
}

// checkTold says what is wrong with what the dialing end was told.
func checkTold(t *testing.T, err error, why *tunnel.Goodbye) {
	t.Helper()
	var bye *tunnel.Goodbye
	if !errors.As(err, &bye) || *bye != *why || tunnel.CodeOf(err) != why.Code {
		t.Errorf("it was told %v, want %+v", err, why)
	}
	if after, ok := tunnel.RetryAfter(err); !ok || after != why.Retry {
		t.Errorf("it is to come back after %v, %t", after, ok)
	}
}

// RunResumeRefusals runs what a transport must pass besides whose sessions ask before
// they go on on another connection. While the answer is Busy a session waits, and
// nothing of it is lost; when it is refused the dialing end is told why.
func RunResumeRefusals(t *testing.T, mk MakeResumer) {
	for _, code := range []tunnel.Code{tunnel.Revoked, tunnel.Denied} {
		t.Run(code.String(), func(t *testing.T) {
			var answer atomic.Pointer[tunnel.Goodbye]
			asked := make(chan struct{}, 1)
			a, b, net := mk(t, tunnel.Options{Link: tunnel.LinkOptions{DetachWindow: time.Hour, Resume: func(tunnel.Peer) error {
				select {
				case asked <- struct{}{}:
				default:
				}
				if bye := answer.Load(); bye != nil {
					return &saying{bye}
				}
				return nil
			}}})
			t.Cleanup(func() { _, _ = a.Close(), b.Close() })
			ended := greeted(t, a, b)
			near, far := streams(t, a, b)

			answer.Store(&tunnel.Goodbye{Code: tunnel.Busy, Text: "not ready", Retry: 2 * time.Second})
			net.Cut()
			for range 2 { // the second comes after the first has been answered
				select {
				case <-asked:
				case err := <-ended:
					t.Fatalf("it did not wait: %v", err)
				}
			}
			for _, s := range []tunnel.Session{a, b} {
				if err := context.Cause(s.Context()); err != nil || s.Link().Parked.IsZero() {
					t.Errorf("it does not wait: %v", err)
				}
			}
			answer.Store(nil)
			if _, err := near.Write([]byte("late")); err != nil {
				t.Error(err)
			}
			finishes(t, "a read of what was said meanwhile", func() {
				if _, err := far.Read(make([]byte, 4)); err != nil {
					t.Errorf("what was open is lost: %v", err)
				}
			})

			why := &tunnel.Goodbye{Code: code, Text: "node was revoked", Retry: 30 * time.Second}
			answer.Store(why)
			net.Cut()
			checkTold(t, <-ended, why)
			<-b.Context().Done()
			if err := context.Cause(b.Context()); tunnel.CodeOf(err) != code || !strings.Contains(err.Error(), "node was revoked") {
				t.Errorf("the accepting end: %v", err)
			}
		})
	}
}

// greeted begins a session between a, which greets, and b. The channel gets how its control ends at a.
func greeted(t *testing.T, a, b tunnel.Session) <-chan error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		g, err := tunnel.Await(within(t), b)
		if err == nil {
			err = g.Control(tunnel.Welcome{}).Welcome(within(t))
		}
		ended <- err
	}()
	control, _, err := tunnel.Greet(within(t), a, tunnel.Hello{Node: "n", Instance: 1, Sequence: 1})
	if err = errors.Join(err, <-ended); err != nil {
		t.Fatal(err)
	}
	go func() { ended <- control.Run(within(t), nil) }()
	return ended
}

// saying is an error of an accepting end, which has a code and a text of its own.
type saying struct{ what *tunnel.Goodbye }

func (s *saying) Error() string             { return s.what.Text }
func (s *saying) Unwrap() error             { return s.what.Code }
func (s *saying) RetryAfter() time.Duration { return s.what.Retry }
