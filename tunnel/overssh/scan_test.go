// Asking an sshd for its host keys.

package overssh

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"errors"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"
)

func TestShownBy(t *testing.T) {
	for _, s := range servers {
		t.Run(s.name, func(t *testing.T) {
			l := s.start(t)
			key, err := ShownBy(within(t), l.addr)
			if err != nil || !key.equal(l.host) {
				t.Errorf("%v, %v", key, err)
			}
			if key, err = FindKey(within(t), l.addr, l.host.Fingerprint()); err != nil || !key.equal(l.host) {
				t.Errorf("%v, %v", key, err)
			}
			if _, err := FindKey(within(t), l.addr, "SHA256:other"); err == nil || !strings.Contains(err.Error(), l.host.Fingerprint()) {
				t.Errorf("a key it does not have: %v", err)
			}
			l.cancel()
			if _, err := ShownBy(within(t), l.addr); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("nobody there: %v", err)
			}
		})
	}
}

// An administrator may have compared another key than the one that is shown first.
func TestFindKey(t *testing.T) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	second, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t)
	l.addr, l.more = "127.0.0.1:0", []ssh.Signer{second}
	startOwn(t, l, nil)
	first := HostKey{key: second.PublicKey()}.Fingerprint()
	for _, want := range []string{l.host.Fingerprint(), first} {
		key, err := FindKey(within(t), l.addr, want)
		if err != nil || key.Fingerprint() != want {
			t.Errorf("%v, %v; want %s", key, err, want)
		}
	}
	_, err = FindKey(within(t), l.addr, "SHA256:other")
	if err == nil || !strings.Contains(err.Error(), l.host.Fingerprint()) || !strings.Contains(err.Error(), first) {
		t.Errorf("a key it does not have: %v", err)
	}
	// A Dialer that has the second one pinned is shown that.
	cfg := l.config(t)
	if err := cfg.HostKeys.Pin("node-1", HostKey{key: second.PublicKey()}); err != nil {
		t.Fatal(err)
	}
	d, _ := run(t, cfg)
	if err := d.Check(within(t), ""); err != nil {
		t.Error(err)
	}
}
