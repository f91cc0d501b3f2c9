// Where the connections to a port of a Service go.

package loadbalancer

import (
	"net"
	"net/netip"
	"strconv"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/hawser-project/hawser/controlplane/apiserver/kubelet"
)

// endpoints are those of a port of a Service. They are read anew when the Service has
// other slices, and not for each connection: there may be thousands.
type endpoints struct {
	slicesOf func() ([]*discoveryv1.EndpointSlice, error)
	port     string

	mu   sync.Mutex                          // guards the following
	read map[*discoveryv1.EndpointSlice]bool // the cache's own, which nobody changes
	last []string
}

// targets are the endpoints that are ready, or those that still serve while they end if
// there is no other.
func (e *endpoints) targets() ([]string, error) {
	all, err := e.slicesOf()
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.current(all) {
		return e.last, nil
	}
	e.read = make(map[*discoveryv1.EndpointSlice]bool, len(all))
	var ready, ending []string
	for _, s := range all {
		e.read[s] = true
		r, g := targetsOf(s, e.port)
		ready, ending = append(ready, r...), append(ending, g...)
	}
	if e.last = ready; len(ready) == 0 {
		e.last = ending
	}
	return e.last, nil
}

// current reports whether all are the slices that were read last.
func (e *endpoints) current(all []*discoveryv1.EndpointSlice) bool {
	for _, s := range all {
		if !e.read[s] {
			return false
		}
	}
	return e.read != nil && len(all) == len(e.read)
}

// targetsOf are the endpoints of a slice that are ready, and those that end.
func targetsOf(s *discoveryv1.EndpointSlice, port string) (ready, ending []string) {
	n := portOf(s, port)
	if n == 0 || s.AddressType == discoveryv1.AddressTypeFQDN {
		return nil, nil
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if len(e.Addresses) == 0 || e.NodeName == nil {
			continue // without a node nobody knows the way
		}
		if addr, err := netip.ParseAddr(e.Addresses[0]); err != nil || kubelet.IsLocal(addr) {
			continue // it would lead to what the node has not offered
		}
		target := net.JoinHostPort(e.Addresses[0]+"%"+*e.NodeName, strconv.Itoa(n))
		switch is := e.Conditions; {
		case is.Ready == nil || *is.Ready:
			ready = append(ready, target)
		case is.Serving != nil && *is.Serving && is.Terminating != nil && *is.Terminating:
			ending = append(ending, target)
		}
	}
	return ready, ending
}

// portOf is the number of a slice's port; 0 if it has none of the name.
func portOf(s *discoveryv1.EndpointSlice, name string) int {
	for _, p := range s.Ports {
		if p.Port != nil && (p.Name == nil && name == "" || p.Name != nil && *p.Name == name) {
			return int(*p.Port)
		}
	}
	return 0
}
