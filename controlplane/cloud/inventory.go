package cloud

// The inventory: which machines there are, and on which addresses servers listen.

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/hawser-project/hawser/auth/kubeauth/place"
)

const (
	// Running and Shutdown are the states of a machine.
	Running, Shutdown = "running", "shutdown"

	maxMachines  = 100_000
	maxAddresses = 256 // of a pool
	// maxInventory bounds the file, in bytes: 640 for each machine.
	maxInventory = 640 * maxMachines
)

// An Inventory is the file of --cloud-config, of 64 MB at most, or a ConfigMap that this names,
// in YAML or JSON.
type Inventory struct {
	// Machines are all that there are. Nil, and not just empty, means that every node is
	// one.
	Machines []Machine `json:"machines,omitempty"`
	// LoadBalancers says where servers listen for Services.
	LoadBalancers struct {
		// Addresses are IP addresses of servers, which have been told to listen there by
		// --load-balancer-addresses. At most 256.
		Addresses []string `json:"addresses,omitempty"`
	} `json:"loadBalancers,omitzero"`

	pool   []netip.Addr // the addresses
	byNode map[string]*Machine
}

// A Machine may be a node.
type Machine struct {
	// Name is the node's.
	Name string `json:"name"`
	// ID is the machine's in the provider's ID, hawser://ID; the name by default.
	ID string `json:"id,omitempty"`
	// Zone, Region and Type become labels; empty for none.
	Zone   string `json:"zone,omitempty"`
	Region string `json:"region,omitempty"`
	Type   string `json:"type,omitempty"`
	// Addresses are the Node's; those that the agent found by default.
	Addresses []corev1.NodeAddress `json:"addresses,omitempty"`
	// State is Running, by default, or Shutdown.
	State string `json:"state,omitempty"`
	// Labels are given to the Node as well.
	Labels map[string]string `json:"labels,omitempty"`
}

// ParseInventory reads an inventory. Errors name the line.
func ParseInventory(b []byte) (*Inventory, error) {
	if j, err := yaml.YAMLToJSON(b); err == nil && string(j) == "null" {
		return nil, errors.New("line 1: it is empty; an inventory that says nothing is {}")
	}
	v := &Inventory{byNode: make(map[string]*Machine)}
	if err := yaml.UnmarshalStrict(b, v); err != nil {
		return nil, place.Of(b, err)
	}
	if err := v.check(); err != nil {
		return nil, place.Of(b, err)
	}
	return v, nil
}

func (v *Inventory) check() error {
	if v.Machines != nil && len(v.Machines) == 0 {
		return errors.New("machines: there are none, and so all nodes would be deleted that are not ready: leave the field out, or name one")
	}
	if len(v.Machines) > maxMachines {
		return fmt.Errorf("machines: %d, which is more than %d", len(v.Machines), maxMachines)
	}
	ids := make(map[string]bool)
	for i := range v.Machines {
		m := &v.Machines[i]
		if err := m.check(); err != nil {
			return fmt.Errorf("machines[%d]%w", i, err)
		}
		m.ID, m.State = cmp.Or(m.ID, m.Name), cmp.Or(m.State, Running)
		if v.byNode[m.Name] != nil {
			return fmt.Errorf("machines[%d].name: %s is there twice", i, m.Name)
		}
		if ids[m.ID] {
			return fmt.Errorf("machines[%d].id: %s is there twice", i, m.ID)
		}
		v.byNode[m.Name], ids[m.ID] = m, true
	}
	list := v.LoadBalancers.Addresses
	if len(list) > maxAddresses {
		return fmt.Errorf("loadBalancers.addresses: %d, which is more than %d", len(list), maxAddresses)
	}
	for i, s := range list {
		a, err := netip.ParseAddr(s)
		if err != nil || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "" {
			return fmt.Errorf("loadBalancers.addresses[%d]: %q is no address of a server", i, s)
		}
		v.pool = append(v.pool, a)
	}
	return nil
}

// check returns what is wrong, beginning with the field.
func (m *Machine) check() error {
	if msgs := validation.IsDNS1123Subdomain(m.Name); len(msgs) > 0 {
		return fmt.Errorf(".name: %q is no name of a node: %s", m.Name, msgs[0])
	}
	if strings.ContainsAny(m.ID, " \t\n") {
		return fmt.Errorf(".id: %q has blanks", m.ID)
	}
	for field, value := range map[string]string{"zone": m.Zone, "region": m.Region, "type": m.Type} {
		if msgs := validation.IsValidLabelValue(value); len(msgs) > 0 {
			return fmt.Errorf(".%s: %q: %s", field, value, msgs[0])
		}
	}
	if m.State != "" && m.State != Running && m.State != Shutdown {
		return fmt.Errorf(".state: %q: want %s or %s", m.State, Running, Shutdown)
	}
	for i, a := range m.Addresses {
		switch a.Type {
		case corev1.NodeInternalIP, corev1.NodeExternalIP:
			if _, err := netip.ParseAddr(a.Address); err != nil {
				return fmt.Errorf(".addresses[%d].address: %w", i, err)
			}
		case corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS:
		default:
			return fmt.Errorf(".addresses[%d].type: %q: want InternalIP, ExternalIP, Hostname, InternalDNS or ExternalDNS", i, a.Type)
		}
	}
	for key, value := range m.Labels {
		if msgs := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(msgs) > 0 {
			return fmt.Errorf(".labels: %s=%s: %s", key, value, msgs[0])
		}
	}
	return nil
}

// machine is that of a node, or nil if it has none: the one of its name, which its certificate
// proves. A node writes its provider ID itself, so that finds no machine: it has to be that of
// the machine.
func (v *Inventory) machine(n *corev1.Node) *Machine {
	m := v.byNode[n.Name]
	if id, ok := strings.CutPrefix(n.Spec.ProviderID, Name+"://"); ok && m != nil && m.ID != id {
		return nil
	}
	return m
}
