// Package hostkeystest makes SSH keys and SSH servers for tests.
package hostkeystest

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"sync"
	"testing"

	"golang.org/x/crypto/ssh"
)

// WriteKey makes a key pair. It writes the private key to path and the public key to
// path.pub, as ssh-keygen does.
func WriteKey(t testing.TB, path string) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{path: pem.EncodeToMemory(block), path + ".pub": ssh.MarshalAuthorizedKey(signer.PublicKey())} {
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return signer
}

// Serve starts an SSH server on loopback that has host keys and admits no user. It ends
// with the test, or earlier by stop.
func Serve(t testing.TB, keys ...ssh.Signer) (addr string, stop func()) {
	t.Helper()
	return ServeSome(t, func(int) bool { return true }, keys...)
}

// ServeSome is Serve that hangs up on connections for which serves is false, as MaxStartups of
// sshd_config(5) has it. The first connection is number 0.
func ServeSome(t testing.TB, serves func(number int) bool, keys ...ssh.Signer) (addr string, stop func()) {
	t.Helper()
	conf := &ssh.ServerConfig{PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
		return nil, errors.New("no user is admitted")
	}}
	for _, k := range keys {
		conf.AddHostKey(k)
	}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for n := 0; ; n++ {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if serves(n) {
				_, _, _, _ = ssh.NewServerConn(c, conf)
			}
			_ = c.Close()
		}
	})
	stop = func() {
		_ = ln.Close()
		wg.Wait()
	}
	t.Cleanup(stop)
	return ln.Addr().String(), stop
}
