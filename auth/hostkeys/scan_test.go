// Tests of reading an sshd's host keys.

package hostkeys

import (
	"context"
	"crypto/rand"
	"errors"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/hawser-project/hawser/auth/hostkeys/hostkeystest"
)

// An administrator may have compared another key than the first one.
func TestScan(t *testing.T) {
	want := []ssh.Signer{newKey(t, ssh.KeyAlgoRSA), newKey(t, ssh.KeyAlgoECDSA256), newKey(t, ssh.KeyAlgoED25519)}
	addr, stop := hostkeystest.Serve(t, want[2], want[0], want[1])
	keys, err := Scan(within(t), addr, nil)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.EqualFunc(keys, want, func(k Key, s ssh.Signer) bool { return k.Fingerprint() == ssh.FingerprintSHA256(s.PublicKey()) }) {
		t.Errorf("shows %v", keys)
	}
	stop()
	if _, err := Scan(within(t), addr, nil); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody there: %v", err)
	}
}

// TestScanDropped: an sshd may hang up on a connection that follows another one at once. It is asked
// again, unless enough was shown, and what it has shown is kept.
func TestScanDropped(t *testing.T) {
	signers := []ssh.Signer{newKey(t, ssh.KeyAlgoRSA), newKey(t, ssh.KeyAlgoECDSA256)}
	second := Key{signers[1].PublicKey()}
	addr, _ := hostkeystest.ServeSome(t, func(n int) bool { return n != 1 }, signers...)
	keys, err := Scan(within(t), addr, nil)
	if err != nil || len(keys) != 2 || keys[1].Fingerprint() != second.Fingerprint() {
		t.Errorf("dropped once: %v, %v", keys, err)
	}
	addr, _ = hostkeystest.ServeSome(t, func(n int) bool { return n == 0 }, signers...)
	keys, err = Scan(within(t), addr, func(Key) bool { return true })
	if err != nil || len(keys) != 1 {
		t.Errorf("the first is enough: %v, %v", keys, err)
	}
	ctx, cancel := context.WithCancel(within(t))
	defer cancel()
	addr, _ = hostkeystest.ServeSome(t, func(n int) bool {
		if n > 1 { // it was asked again, and hung up again
			cancel()
		}
		return n == 0
	}, signers...)
	keys, err = Scan(ctx, addr, func(k Key) bool { return k.Fingerprint() == second.Fingerprint() })
	if err == nil || len(keys) != 1 {
		t.Errorf("dropped for good: %v, %v", keys, err)
	}
}

// The wait for a silent sshd ends with the context.
func TestScanSilence(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Scan(ctx, ln.Addr().String(), nil); err == nil {
		t.Error("no error")
	}
}

// A certificate of an authority, and the key of the pinned type, are requested from the sshd,
// regardless of its preference.
func TestShowsWhatIsKnown(t *testing.T) {
	host, rather, ca := newKey(t, ssh.KeyAlgoED25519), newKey(t, ssh.KeyAlgoECDSA256), newKey(t, ssh.KeyAlgoED25519)
	signed, err := ssh.NewCertSigner(certify(t, Key{host.PublicKey()}, ca, time.Now().Add(time.Hour), "node-1"), host)
	if err != nil {
		t.Fatal(err)
	}
	addr, _ := hostkeystest.Serve(t, rather, host, signed)
	for name, text := range map[string]string{
		"authority": "@cert-authority node-* " + Key{ca.PublicKey()}.text(),
		"hashed":    knownhosts.HashHostname("node-1") + " " + Key{host.PublicKey()}.text(),
		"other":     "node-1 " + Key{rather.PublicKey()}.text(),
	} {
		t.Run(name, func(t *testing.T) {
			f := written(t, text)
			algorithms, err := f.Algorithms("node-1", addr)
			if err != nil {
				t.Fatal(err)
			}
			c, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			checked := errors.New("never asked")
			_, _, _, _ = ssh.NewClientConn(c, addr, &ssh.ClientConfig{
				HostKeyAlgorithms: algorithms,
				HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
					checked = f.Check("node-1", addr, key)
					return checked
				},
			})
			if checked != nil {
				t.Error(checked)
			}
		})
	}
}

// certify makes a host certificate for key.
func certify(t testing.TB, key Key, authority ssh.Signer, until time.Time, names ...string) *ssh.Certificate {
	t.Helper()
	c := &ssh.Certificate{
		Key: key.PublicKey, CertType: ssh.HostCert, ValidPrincipals: names,
		ValidAfter: uint64(time.Now().Add(-time.Hour).Unix()), ValidBefore: uint64(until.Unix()),
	}
	if err := c.SignCert(rand.Reader, authority); err != nil {
		t.Fatal(err)
	}
	return c
}
