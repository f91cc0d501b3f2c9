// Targets and errors: parses addresses, and translates sshd's answers.

package overssh

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
)

// A HostKeyError means that HostKeys refuse the key that a node's sshd has shown.
type HostKeyError struct {
	Key ssh.PublicKey
	Err error // of HostKeys
}

// Error says why, as an error that wraps tunnel.Denied.
func (e *HostKeyError) Error() string { return fmt.Sprintf("%v: %v", tunnel.Denied, e.Err) }

// Unwrap gives tunnel.Denied and the error of HostKeys.
func (e *HostKeyError) Unwrap() []error { return []error{tunnel.Denied, e.Err} }

// A target is a direct-tcpip request (RFC 4254, 7.2). The node does not learn who has asked.
type target struct {
	Host           string
	Port           uint32
	Originator     string // always "127.0.0.1"
	OriginatorPort uint32 // always 0
}

// parseTarget parses addr as the address of a dial into node. Package server has checked what
// callers say, and taken %NODE off.
func parseTarget(node, network, addr string) (target, error) {
	if !slices.Contains([]string{"tcp", "tcp4", "tcp6"}, network) {
		return target{}, fmt.Errorf("%w: network %q does not go through ssh, tcp does", tunnel.Invalid, network)
	}
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return target{}, fmt.Errorf("%w: %w", tunnel.Invalid, err)
	}
	port, err := strconv.ParseUint(service, 10, 16)
	if err != nil {
		return target{}, fmt.Errorf("%w: %w", tunnel.Invalid, err)
	}
	if host == node {
		host = "127.0.0.1"
	}
	return target{Host: host, Port: uint32(port), Originator: "127.0.0.1"}, nil
}

// words are the C library's texts for connects and lookups that have failed: sshd passes on
// nothing else. It is never changed.
var words = []struct {
	text string
	code tunnel.Code
}{
	{"connection refused", tunnel.Refused},
	{"connection reset", tunnel.Lost},
	{"no route to host", tunnel.Unreachable},
	{"network is unreachable", tunnel.Unreachable},
	{"timed out", tunnel.Timeout},
	{"name or service not known", tunnel.Unresolved},
	{"name resolution", tunnel.Unresolved},
	{"no address associated", tunnel.Unresolved},
	{"permission denied", tunnel.Denied},
	{"too many open files", tunnel.Busy},
}

// rejected translates the error of a channel that was not opened.
func rejected(e *ssh.OpenChannelError) error {
	code := tunnel.Internal
	switch e.Reason {
	case ssh.Prohibited, ssh.UnknownChannelType:
		code = tunnel.Denied
	case ssh.ResourceShortage:
		code = tunnel.Busy
	case ssh.ConnectionFailed:
		code = tunnel.Unreachable
		text := strings.ToLower(e.Message)
		for _, w := range words {
			if strings.Contains(text, w.text) {
				code = w.code
				break
			}
		}
	}
	if code == tunnel.Denied {
		return fmt.Errorf("%w: sshd does not forward there (%s: %s); see AllowTcpForwarding and PermitOpen in its sshd_config", code, e.Reason, e.Message)
	}
	return fmt.Errorf("%w: sshd says: %s: %s", code, e.Reason, e.Message)
}
