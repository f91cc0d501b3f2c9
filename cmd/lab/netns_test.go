package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestDoReturnsHome sees the node's network within Do and the host's after it, even
// on the same goroutine.
func TestDoReturnsHome(t *testing.T) {
	l := newLab(t, 1)
	n := l.Nodes()[0]
	here := func() bool {
		_, err := net.InterfaceByName(l.bridge())
		return err == nil
	}
	for range 20 {
		must(t, n.Do(func() error {
			if here() {
				t.Error("the node sees the host's bridge")
			}
			return nil
		}))
		if !here() {
			t.Fatal("the host's bridge is not to be seen: still in the node's network")
		}
	}
	broken := errors.New("broken")
	if err := n.Do(func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("do returned %v", err)
	}
	if err := inNamespace(n.ns+"-not", func() error { return nil }); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a namespace that is not there: %v", err)
	}
}

func TestNetlinkError(t *testing.T) {
	answer := func(kind uint16, code int32) []byte {
		msg := make([]byte, unix.NLMSG_HDRLEN+4)
		binary.NativeEndian.PutUint16(msg[4:], kind)
		binary.NativeEndian.PutUint32(msg[unix.NLMSG_HDRLEN:], uint32(code))
		return msg
	}
	if err := netlinkError(answer(unix.NLMSG_ERROR, 0)); err != nil {
		t.Errorf("an acknowledgement: %v", err)
	}
	if err := netlinkError(answer(unix.NLMSG_ERROR, -int32(unix.EPERM))); !errors.Is(err, os.ErrPermission) {
		t.Errorf("a refusal: %v", err)
	}
	for name, msg := range map[string][]byte{
		"nothing": nil, "short": answer(unix.NLMSG_ERROR, 0)[:unix.NLMSG_HDRLEN], "of another kind": answer(unix.NLMSG_DONE, 0),
	} {
		if netlinkError(msg) == nil {
			t.Errorf("an answer that is %s was taken for an acknowledgement", name)
		}
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lock(t.Context(), dir)
	must(t, err)
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err = lock(short, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("locked twice: %v", err)
	}
	unlock()
	unlock, err = lock(t.Context(), dir)
	must(t, err)
	unlock()
	if _, err = lock(t.Context(), dir+"/not"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("locked a directory that is not there: %v", err)
	}
}

// TestRules shows what the packet filter is told when everything fails at once.
func TestRules(t *testing.T) {
	f := faults{cut: In, loss: 0.25, reset: true, shaped: true, binding: 21}
	rules := f.rules()
	for _, want := range []string{
		`iifname { "lan0", "tun-node" } notrack`, `iifname "wan0" drop`, "reject with tcp reset",
		"numgen random mod 1000000 < 250000 drop", "masquerade to :11000-11999",
	} {
		if !strings.Contains(rules, want) {
			t.Errorf("%q is not in\n%s", want, rules)
		}
	}
	if strings.Contains(rules, `oifname "wan0" drop`) {
		t.Errorf("a cut inwards cuts outwards in\n%s", rules)
	}
	if plain := (faults{}).rules(); strings.Contains(plain, "drop") || strings.Contains(plain, "masquerade") || strings.Contains(plain, "notrack") {
		t.Errorf("no fault does something:\n%s", plain)
	}
}
