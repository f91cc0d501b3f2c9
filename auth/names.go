// Names of the server, which no node may have.

package auth

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ServerNames are the names and addresses of the server. The zero value has those
// that every server has.
type ServerNames struct {
	names []string // in lower case, without a dot at the end; one may start with "*."
	ips   []netip.Addr
}

// everyServer are the names by which clients know any server.
var everyServer = []string{"kubernetes", "kubernetes.default", clusterService, "apiserver", "kube-apiserver", "localhost", "localhost.localdomain"}

// clusterService is followed by the domain of the cluster.
const clusterService = "kubernetes.default.svc"

// NewServerNames returns the names of a server: names, of which some may be IP addresses,
// and those of every server.
func NewServerNames(names ...string) *ServerNames {
	s := &ServerNames{}
	s.Add(names...)
	return s
}

// Add adds names like those of NewServerNames. s must not be used at the same time.
func (s *ServerNames) Add(names ...string) {
	for _, name := range names {
		name = canonical(name)
		if ip, ok := address(name); ok {
			s.ips = append(s.ips, ip)
		} else if name != "" {
			s.names = append(s.names, name)
		}
	}
}

// Check returns an error if a node's name is one of the server's, in any spelling. The
// error has the remedy.
func (s *ServerNames) Check(node string) error {
	if of := s.owner(canonical(node)); of != "" {
		return fmt.Errorf("node name %q is a name of the server (%s): choose another --node-name, or another --tls-san for the server", node, of)
	}
	return nil
}

// Own reports whether a DNS name or IP address of a certificate is the server's. A
// wildcard is if it covers one of the server's names.
func (s *ServerNames) Own(name string) bool {
	name = canonical(name)
	if s.owner(name) != "" {
		return true
	}
	if !strings.HasPrefix(name, "*.") {
		return false
	}
	for _, of := range slices.Concat(everyServer, s.names) {
		if covers(name, of) {
			return true
		}
	}
	return false
}

// owner returns the server's name that equals a canonical name or is covered by it; empty
// if there is none.
func (s *ServerNames) owner(name string) string {
	if ip, ok := address(name); ok {
		if ip.IsLoopback() || ip.IsUnspecified() || slices.Contains(s.ips, ip) {
			return ip.String()
		}
		return ""
	}
	switch {
	case strings.HasPrefix(name, clusterService+"."):
		return clusterService
	case strings.HasSuffix(name, ".localhost"): // RFC 6761 section 6.3
		return "localhost"
	}
	for _, of := range slices.Concat(everyServer, s.names) {
		if name == of || covers(of, name) {
			return of
		}
	}
	return ""
}

// covers reports whether a wildcard covers name, with one label for the star (RFC 6125
// section 6.4.3).
func covers(wildcard, name string) bool {
	rest, ok := strings.CutPrefix(wildcard, "*.")
	_, parent, found := strings.Cut(name, ".")
	return ok && found && rest == parent
}

func canonical(name string) string {
	name = strings.ToLower(strings.TrimSpace(name))
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	return strings.TrimRight(name, ".")
}

// address parses an IP address in any spelling that resolvers accept: the usual ones, and
// those of inet_aton, such as 127.1 or 0x7f000001.
func address(name string) (netip.Addr, bool) {
	if ip, err := netip.ParseAddr(name); err == nil {
		return ip.WithZone("").Unmap(), true
	}
	parts := strings.Split(name, ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var sum uint64
	for i, part := range parts {
		if part == "" || strings.ContainsAny(part, "_ob+-") && !strings.HasPrefix(part, "0x") {
			return netip.Addr{}, false
		}
		n, err := strconv.ParseUint(part, 0, 32)
		bits := 8
		if i == len(parts)-1 {
			bits = 8 * (5 - len(parts)) // the last part fills the rest
		}
		if err != nil || n >= 1<<bits {
			return netip.Addr{}, false
		}
		sum = sum<<bits | n
	}
	return netip.AddrFrom4([4]byte{byte(sum >> 24), byte(sum >> 16), byte(sum >> 8), byte(sum)}), true
}
