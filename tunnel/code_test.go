package tunnel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

var _ net.Error = Code(0)

func TestCodeOf(t *testing.T) {
	sys := func(e syscall.Errno) error {
		return &net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("connect", e)}
	}
	for _, tc := range []struct {
		name string
		err  error
		want Code
	}{
		{"nil", nil, 0},
		{"a code", fmt.Errorf("x: %w", Ambiguous), Ambiguous},
		{"a DialError", fmt.Errorf("x: %w", &DialError{Code: NoNode}), NoNode},
		{"a Goodbye", &Goodbye{Code: Replaced}, Replaced},
		{"ECONNREFUSED", sys(syscall.ECONNREFUSED), Refused},
		{"EHOSTUNREACH", sys(syscall.EHOSTUNREACH), Unreachable},
		{"ENETUNREACH", sys(syscall.ENETUNREACH), Unreachable},
		{"a blackhole route", sys(syscall.EINVAL), Unreachable},
		{"ETIMEDOUT", sys(syscall.ETIMEDOUT), Timeout},
		{"EACCES", sys(syscall.EACCES), Denied},
		{"EMFILE", sys(syscall.EMFILE), Busy},
		{"ENOMEM", sys(syscall.ENOMEM), Busy},
		{"ENOBUFS", sys(syscall.ENOBUFS), Busy},
		{"ECONNRESET", sys(syscall.ECONNRESET), Lost},
		{"another errno", sys(syscall.ENOTTY), Internal},
		{"canceled", fmt.Errorf("x: %w", context.Canceled), Canceled},
		{"deadline", context.DeadlineExceeded, Timeout},
		{"i/o deadline", &net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, Timeout},
		{"no such host", &net.DNSError{IsNotFound: true}, Unresolved},
		{"DNS timeout", &net.DNSError{IsTimeout: true}, Timeout},
		{"bad address", &net.AddrError{Err: "missing port"}, Invalid},
		{"closed", net.ErrClosed, Lost},
		{"closed session", ErrSessionClosed, Lost},
		{"anything else", io.ErrShortWrite, Internal},
	} {
		if got := CodeOf(tc.err); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// Codes are on the wire: this table may grow, and never change.
func TestCodes(t *testing.T) {
	for n, want := range []string{
		1: "no such node is connected", 2: "node is reconnecting", 3: "connection refused",
		4: "target is unreachable", 5: "timed out", 6: "denied by policy", 7: "draining",
		8: "address belongs to more than one node", 9: "internal error", 10: "canceled",
		11: "name does not resolve", 12: "invalid request", 13: "replaced by a newer session",
		14: "session lost", 15: "too many requests", 16: "peer is silent",
		17: "identity is not admitted",
	} {
		c := Code(n)
		if n == 0 {
			want = "code 0"
		}
		if c.String() != want {
			t.Errorf("code %d: %q, want %q", n, c, want)
		}
	}
	if got := Code(200).Error(); got != "code 200" {
		t.Errorf("unknown code: %q", got)
	}
	if len(codes) != 18 {
		t.Errorf("%d codes: add the new ones to the table above", len(codes)-1)
	}
}

// TestCodeNames: each code has a name of its own, which is one word, and
// codes of newer peers share one.
func TestCodeNames(t *testing.T) {
	word := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	seen := map[string]Code{}
	for i := range codes {
		name := Code(i).Name()
		if other, twice := seen[name]; twice || !word.MatchString(name) || name == "other" {
			t.Errorf("code %d is called %q, like %d", i, name, other)
		}
		seen[name] = Code(i)
	}
	for i := len(codes); i < 256; i++ {
		if name := Code(i).Name(); name != "other" {
			t.Errorf("code %d is called %q", i, name)
		}
	}
	if name := CodeOf(nil).Name(); name != "ok" {
		t.Errorf("no error is called %q", name)
	}
	if name := CodeOf(errors.New("x")).Name(); name != "internal" {
		t.Errorf("an error without a code is called %q", name)
	}
}

func TestDialError(t *testing.T) {
	for _, tc := range []struct {
		code      Code
		is        []error
		timeout   bool
		temporary bool
	}{
		{Refused, []error{Refused, syscall.ECONNREFUSED}, false, false},
		{Unreachable, []error{syscall.EHOSTUNREACH}, false, false},
		{Timeout, []error{os.ErrDeadlineExceeded}, true, true},
		{Canceled, []error{context.Canceled}, false, false},
		{Lost, []error{syscall.ECONNRESET}, false, true},
		{Denied, []error{Denied}, false, false},
		{NoNode, []error{NoNode}, false, true},
		{Draining, []error{Draining}, false, true},
	} {
		err := fmt.Errorf("x: %w", &DialError{Addr: "n:1", Code: tc.code})
		for _, is := range tc.is {
			if !errors.Is(err, is) {
				t.Errorf("%v is not %v", err, is)
			}
		}
		var ne net.Error
		if !errors.As(err, &ne) || ne.Timeout() != tc.timeout {
			t.Errorf("%v: net.Error with timeout %v wanted", err, tc.timeout)
		}
		if tc.code.Temporary() != tc.temporary {
			t.Errorf("%v: temporary %v", tc.code, tc.code.Temporary())
		}
		if !strings.Contains(err.Error(), "dial n:1: "+tc.code.String()) {
			t.Errorf("text: %v", err)
		}
	}
}
