// Package cloudtest is a cloud for tests: Kubernetes' fake provider, whose load balancers and
// routes can be read and changed over HTTP, from another process too.
package cloudtest

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/fake"
)

const (
	// Name is the provider's, as in --cloud-provider.
	Name = "fake"
	// Address is that of each load balancer.
	Address = "192.0.2.80"
	// maxState bounds a State that is sent, in bytes.
	maxState = 1 << 20
)

// A State is what the cloud has.
type State struct {
	Balancers map[string]Balancer // by namespace/name of the Service
	Routes    map[string]string   // which node a range leads to; a blackhole leads to ""
	Refuses   bool                // the cloud makes, changes and deletes nothing
}

// A Balancer is a load balancer.
type Balancer struct {
	Ports []int32
	Nodes []string
}

// Cloud is the provider. A GET answers with its State as JSON, a PUT replaces that.
type Cloud struct {
	*fake.Cloud

	mu    sync.Mutex // guards the following
	state State
}

var (
	_ cloudprovider.LoadBalancer = (*Cloud)(nil)
	_ cloudprovider.Routes       = (*Cloud)(nil)
)

// New makes a cloud in which each node has a machine.
func New() *Cloud {
	c := &Cloud{Cloud: &fake.Cloud{Provider: Name, EnableInstancesV2: true, ExistsByProviderID: true}}
	c.OverrideInstanceMetadata = func(_ context.Context, n *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
		return &cloudprovider.InstanceMetadata{ProviderID: Name + "://" + n.Name, NodeAddresses: n.Status.Addresses}, nil
	}
	return c
}

// ServeHTTP implements http.Handler.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.Method == http.MethodPut {
		var s State
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxState)).Decode(&s); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		c.state = s
		return
	}
	_ = json.NewEncoder(w).Encode(c.state) // the client has gone if it fails
}

// change has f change the state, unless the cloud refuses.
func (c *Cloud) change(f func(*State)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state.Refuses {
		return errors.New("the fake cloud refuses")
	}
	f(&c.state)
	return nil
}

// LoadBalancer implements cloudprovider.Interface.
func (c *Cloud) LoadBalancer() (cloudprovider.LoadBalancer, bool) { return c, true }

// Routes implements cloudprovider.Interface.
func (c *Cloud) Routes() (cloudprovider.Routes, bool) { return c, true }

func key(s *corev1.Service) string { return s.Namespace + "/" + s.Name }

func status() *corev1.LoadBalancerStatus {
	return &corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{IP: Address}}}
}

// GetLoadBalancer implements cloudprovider.LoadBalancer.
func (c *Cloud) GetLoadBalancer(_ context.Context, _ string, s *corev1.Service) (*corev1.LoadBalancerStatus, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.state.Balancers[key(s)]
	return status(), ok, nil
}

// EnsureLoadBalancer implements cloudprovider.LoadBalancer.
func (c *Cloud) EnsureLoadBalancer(_ context.Context, _ string, s *corev1.Service, nodes []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
	var b Balancer
	for i := range s.Spec.Ports {
		b.Ports = append(b.Ports, s.Spec.Ports[i].Port)
	}
	for _, n := range nodes {
		b.Nodes = append(b.Nodes, n.Name)
	}
	slices.Sort(b.Nodes)
	return status(), c.change(func(st *State) {
		if st.Balancers == nil {
			st.Balancers = make(map[string]Balancer)
		}
		st.Balancers[key(s)] = b
	})
}

// UpdateLoadBalancer implements cloudprovider.LoadBalancer.
func (c *Cloud) UpdateLoadBalancer(ctx context.Context, cluster string, s *corev1.Service, nodes []*corev1.Node) error {
	_, err := c.EnsureLoadBalancer(ctx, cluster, s, nodes)
	return err
}

// EnsureLoadBalancerDeleted implements cloudprovider.LoadBalancer.
func (c *Cloud) EnsureLoadBalancerDeleted(_ context.Context, _ string, s *corev1.Service) error {
	return c.change(func(st *State) { delete(st.Balancers, key(s)) })
}

// ListRoutes implements cloudprovider.Routes.
func (c *Cloud) ListRoutes(context.Context, string) ([]*cloudprovider.Route, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*cloudprovider.Route
	for cidr, node := range c.state.Routes {
		out = append(out, &cloudprovider.Route{Name: cidr, TargetNode: types.NodeName(node), DestinationCIDR: cidr, Blackhole: node == ""})
	}
	return out, nil
}

// CreateRoute implements cloudprovider.Routes.
func (c *Cloud) CreateRoute(_ context.Context, _, _ string, r *cloudprovider.Route) error {
	return c.change(func(st *State) {
		if st.Routes == nil {
			st.Routes = make(map[string]string)
		}
		st.Routes[r.DestinationCIDR] = string(r.TargetNode)
	})
}

// DeleteRoute implements cloudprovider.Routes.
func (c *Cloud) DeleteRoute(_ context.Context, _ string, r *cloudprovider.Route) error {
	return c.change(func(st *State) { delete(st.Routes, r.DestinationCIDR) })
}
