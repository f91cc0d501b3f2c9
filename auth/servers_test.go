package auth

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"strings"
	"testing"
)

func TestServerID(t *testing.T) {
	for _, tc := range []struct {
		name    string
		cn      string
		orgs    []string
		want    string
		refused bool
	}{
		{"server", "hawser:server:a-1", []string{ServersGroup}, "a-1", false},
		{"node", "system:node:a", []string{NodesGroup}, "", true},
		{"node in the group", "system:node:a", []string{ServersGroup}, "", true},
		{"without the group", "hawser:server:a", nil, "", true},
		{"with another group", "hawser:server:a", []string{ServersGroup, NodesGroup}, "", true},
		{"empty", "hawser:server:", []string{ServersGroup}, "", true},
		{"dots", "hawser:server:a.b", []string{ServersGroup}, "", true},
		{"long", "hawser:server:" + strings.Repeat("a", 64), []string{ServersGroup}, "", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ServerID(&x509.Certificate{Subject: pkix.Name{CommonName: tc.cn, Organization: tc.orgs}})
			if got != tc.want || errors.Is(err, ErrNotServer) != tc.refused {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
	if _, err := ServerID(nil); !errors.Is(err, ErrNotServer) {
		t.Errorf("no certificate: %v", err)
	}
}
