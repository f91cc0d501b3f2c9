// Package sshd is an SSH server to measure against: OpenSSH's if it is installed,
// else one of our own that can do what the measurement needs and nothing more.
//
// Either listens on a port of loopback that the system chooses, lets in one user
// with one key, and forwards to loopback only. The keys are made for it, in a
// directory that the caller throws away.
package sshd

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/crypto/ssh"
)

// Files of a directory of keys. That of a public key has .pub after it.
const (
	HostKey = "ssh_host_key"
	UserKey = "ssh_user_key"
)

// A Server is an SSH server that listens.
type Server struct {
	// Addr is where, HOST:PORT.
	Addr string
	// User is who may log in, with the key UserKey.
	User string
	// Kind says what it is, for people.
	Kind string

	run       func(context.Context) error
	processes func() []int
}

// Start starts OpenSSH's server if it is installed and comes up, and else makes
// one of our own, whose Kind says why. dir has the keys; logs and configuration
// go there. The calling goroutine must be locked to a thread that lives until Run
// has returned: the kernel ends OpenSSH with that thread. Run must be called.
func Start(ctx context.Context, dir string) (*Server, error) {
	s, err := startOpenSSH(ctx, dir)
	if err == nil {
		return s, nil
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return newOwn(ctx, dir, err)
}

// Run serves until ctx is done. Nothing of the server is left when it returns.
func (s *Server) Run(ctx context.Context) error { return s.run(ctx) }

// Processes are the ids of the processes that serve now.
func (s *Server) Processes() []int { return s.processes() }

// MakeKeys makes the server's key and the user's in dir.
func MakeKeys(dir string) error {
	for _, name := range []string{HostKey, UserKey} {
		if err := makeKey(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("make ssh key: %w", err)
		}
	}
	return nil
}

func makeKey(path string) error {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(private, "")
	if err != nil {
		return err
	}
	key, err := ssh.NewPublicKey(public)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
		return err
	}
	return os.WriteFile(path+".pub", ssh.MarshalAuthorizedKey(key), 0o600)
}
