// What the test binary does when it runs as a container of a pod.

package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
)

// roleEnv names the part to play, and what it needs after a space.
const roleEnv = "HAWSER_E2E_ROLE"

func playRole(role string) error {
	name, arg, _ := strings.Cut(role, " ")
	switch name {
	case "hash-server":
		return hashServer(arg)
	case "wait":
		fmt.Println("waiting")
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("got", <-c)
		return nil
	}
	return fmt.Errorf("no role %q", name)
}

// hashServer answers each connection, once its client has closed its half, with
// the SHA-256 of what it sent, and then with that many bytes back, so that both
// directions and both half-closes are seen.
func hashServer(addr string) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	fmt.Println("listening on", l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		go func() { // ends with the connection; the process with SIGTERM
			if err := answerHash(c.(*net.TCPConn)); err != nil && !errors.Is(err, io.EOF) {
				fmt.Println("connection:", err)
			}
		}()
	}
}

func answerHash(c *net.TCPConn) error {
	defer c.Close()
	h := sha256.New()
	n, err := io.Copy(h, c)
	if err != nil {
		return err
	}
	if _, err = fmt.Fprintf(c, "%s\n", hex.EncodeToString(h.Sum(nil))); err != nil {
		return err
	}
	_, err = io.Copy(c, io.LimitReader(pattern{}, n))
	return err
}

// pattern is an endless stream of bytes that are all the same everywhere.
type pattern struct{}

func (pattern) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte('a' + i%26)
	}
	return len(p), nil
}
