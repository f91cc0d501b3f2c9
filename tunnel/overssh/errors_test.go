// Targets and rejections, as tables.

package overssh

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"github.com/hawser-project/hawser/tunnel"
)

func TestParseTarget(t *testing.T) {
	for _, tc := range []struct {
		network, addr string
		host          string
		port          uint32
		code          tunnel.Code
	}{
		{"tcp", "node-1:10250", "127.0.0.1", 10250, 0},
		{"tcp", "10.0.0.7:80", "10.0.0.7", 80, 0},
		{"tcp4", "web.example:65535", "web.example", 65535, 0},
		{"tcp6", "[fd00::7]:80", "fd00::7", 80, 0},
		{"tcp", "[fe80::1%eth0]:80", "fe80::1%eth0", 80, 0},
		{"tcp", "10.0.0.7", "", 0, tunnel.Invalid},
		{"tcp", "a:65536", "", 0, tunnel.Invalid},
		{"tcp", "a:http", "", 0, tunnel.Invalid},
		{"udp", "a:80", "", 0, tunnel.Invalid},
		{"unix", "/a", "", 0, tunnel.Invalid},
	} {
		got, err := parseTarget("node-1", tc.network, tc.addr)
		if got.Host != tc.host || got.Port != tc.port || tunnel.CodeOf(err) != tc.code {
			t.Errorf("%s %s: %+v, %v", tc.network, tc.addr, got, err)
		}
	}
}

func TestRejections(t *testing.T) {
	for _, tc := range []struct {
		reason ssh.RejectionReason
		text   string
		want   tunnel.Code
	}{
		{ssh.Prohibited, "open failed", tunnel.Denied},
		{ssh.UnknownChannelType, "", tunnel.Denied},
		{ssh.ResourceShortage, "", tunnel.Busy},
		{ssh.ConnectionFailed, "Connection refused", tunnel.Refused},
		{ssh.ConnectionFailed, "Connection reset by peer", tunnel.Lost},
		{ssh.ConnectionFailed, "No route to host", tunnel.Unreachable},
		{ssh.ConnectionFailed, "Network is unreachable", tunnel.Unreachable},
		{ssh.ConnectionFailed, "Connection timed out", tunnel.Timeout},
		{ssh.ConnectionFailed, "Name or service not known", tunnel.Unresolved},
		{ssh.ConnectionFailed, "Temporary failure in name resolution", tunnel.Unresolved},
		{ssh.ConnectionFailed, "Verbindung verweigert", tunnel.Unreachable},
		{99, "", tunnel.Internal},
	} {
		err := tunnel.NewDialError("a:1", rejected(&ssh.OpenChannelError{Reason: tc.reason, Message: tc.text}))
		var de *tunnel.DialError
		if !errors.As(err, &de) || de.Code != tc.want || tunnel.CodeOf(err) != tc.want || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%v %q: %v", tc.reason, tc.text, err)
		}
	}
}
