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
		return serve(arg, answerHash)
	case "echo-server":
		return serve(arg, echo)
	case "noise-server":
		return serve(arg, answerNoise)
	case "download-server":
		return serve(arg, download)
	case "web-server":
		return serveWeb(arg)
	case "controller":
		return reconcile(arg)
	case "admission-webhook":
		return serveReviews(arg)
	case "wan-target":
		return serve(arg, answerWAN)
	case "wan-dialer":
		return dialWAN(arg)
	case "store-member":
		return runMember(arg)
	case "egress":
		return reachKubelet(arg)
	case "wait":
		fmt.Println("waiting")
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		fmt.Println("got", <-c)
		return nil
	}
	return fmt.Errorf("no role %q", name)
}

// serve answers each connection.
func serve(addr string, answer func(*net.TCPConn) error) error {
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
			if err := answer(c.(*net.TCPConn)); err != nil && !errors.Is(err, io.EOF) {
				fmt.Println("connection:", err)
			}
		}()
	}
}

// echo sends back what comes.
func echo(c *net.TCPConn) error {
	defer c.Close()
	_, err := io.Copy(c, c)
	return err
}

// answerHash answers, once the client has closed its half, with the SHA-256 of
// what it sent, and then with that many bytes back, so that both directions and
// both half-closes are seen.
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
