package tunnel_test

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser/tunnel"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// A silentTarget does not answer before it is told to.
type silentTarget struct {
	answers chan net.Conn
	gaveUp  chan time.Time
}

func newSilentTarget() *silentTarget {
	return &silentTarget{answers: make(chan net.Conn, 1), gaveUp: make(chan time.Time, 1)}
}

func (s *silentTarget) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	select {
	case c := <-s.answers:
		return c, nil
	case <-ctx.Done():
		s.gaveUp <- time.Now()
		return nil, ctx.Err()
	}
}

// ask starts a dial to the target and has the far side answer it.
func (s *silentTarget) ask(t *testing.T, early string) (st tunnel.Stream, answered chan error) {
	t.Helper()
	st, r, _ := begin(t, t.Context(), early)
	answered = make(chan error, 1)
	go func() { // ends with the dial, and is waited for by who receives
		_, err := tunnel.Answer(t.Context(), r, s.dial)
		answered <- err
	}()
	return st, answered
}

// Who gives a dial up gives up the far side's work on it too, however much was said
// with it, and not only when its time is over.
func TestAnswerHearsOfGivingUp(t *testing.T) {
	for name, tt := range map[string]struct {
		early string
		after time.Duration
	}{
		"at once":               {"", 0},
		"soon":                  {"", 20 * time.Millisecond},
		"late":                  {"", 10 * time.Second},
		"late, with a greeting": {strings.Repeat("x", 1900), 10 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				target := newSilentTarget()
				st, answered := target.ask(t, tt.early)
				<-time.After(tt.after)
				began := time.Now()
				if err := tunnel.Abort(st); err != nil {
					t.Fatal(err)
				}
				if took := (<-target.gaveUp).Sub(began); took > 100*time.Millisecond {
					t.Errorf("heard of after %v", took)
				}
				if err := <-answered; tunnel.CodeOf(err) != tunnel.Canceled {
					t.Errorf("the answer ended with %v", err)
				}
			})
		})
	}
}

// Who waits is answered with all it has said in place, and when it has said that it is all.
func TestAnswerKeepsWhatCameEarly(t *testing.T) {
	for name, early := range map[string]string{
		"nothing":  "",
		"a word":   "hello",
		"the most": strings.Repeat("0123456789abcdef", 256),
		"more":     strings.Repeat("0123456789abcdef", 2000),
	} {
		for _, silent := range []time.Duration{0, 50 * time.Millisecond, 20 * time.Second} {
			for _, ends := range []bool{false, true} {
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						target := newSilentTarget()
						st, answered := target.ask(t, early)
						if ends {
							if err := st.CloseWrite(); err != nil {
								t.Fatal(err)
							}
						}
						<-time.After(silent)
						near, far := memnet.Pipe(memnet.Addr("node"), memnet.Addr("target"))
						target.answers <- near
						rest := ""
						if !ends {
							rest = " and more"
							if _, err := io.WriteString(st, rest); err != nil {
								t.Fatal(err)
							}
							if err := st.CloseWrite(); err != nil {
								t.Fatal(err)
							}
						}
						got, err := io.ReadAll(far)
						if err != nil || string(got) != early+rest {
							t.Errorf("the target got %d bytes, %v; %d were sent", len(got), err, len(early+rest))
						}
						if err := far.Close(); err != nil {
							t.Fatal(err)
						}
						if got, err := io.ReadAll(st); err != nil || len(got) > 0 {
							t.Errorf("the opener got %q, %v", got, err)
						}
						if err := <-answered; err != nil {
							t.Errorf("the answer ended with %v", err)
						}
					})
				})
			}
		}
	}
}
