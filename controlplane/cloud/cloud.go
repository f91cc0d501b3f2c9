// The provider, as the library knows it.

package cloud

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"sync"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/hawser-project/hawser/auth"
)

// Name is the provider's, as in --cloud-provider and in the IDs of machines.
const Name = "hawser"

const (
	// component is whose requests and events the provider's are.
	component = "hawser-cloud-provider"
	// maxConfig bounds a file of --cloud-config, in bytes.
	maxConfig = 1 << 20
)

// Register makes the provider known by its Name, once in a process. It says on log when
// the inventory cannot be read; nil discards.
func Register(log *slog.Logger) {
	cloudprovider.RegisterCloudProvider(Name, func(config io.Reader) (cloudprovider.Interface, error) {
		return New(config, log)
	})
}

// Cloud is the provider.
type Cloud struct {
	inventory *auth.File[*Inventory] // nil if it is no file
	watched   *watched               // nil if it is in no ConfigMap
	files     *auth.Files
	log       *slog.Logger

	mu       sync.Mutex // guards the following
	client   kubernetes.Interface
	services corelisters.ServiceLister
	nodes    corelisters.NodeLister
	pods     []netip.Prefix // where ranges of pods have to be; empty means anywhere
	pool     *pool
}

var (
	_ cloudprovider.Interface    = (*Cloud)(nil)
	_ cloudprovider.InformerUser = (*Cloud)(nil)
)

// New reads config, which has to be a file, or nil for none: an inventory, which is
// followed, or the name of a ConfigMap, as "configMap: NAMESPACE/NAME", which is watched
// from Initialize on. As long as a replacement cannot be read, what was there before
// counts.
func New(config io.Reader, log *slog.Logger) (*Cloud, error) {
	c := &Cloud{log: cmp.Or(log, slog.New(slog.DiscardHandler)), pool: newPool()}
	if config == nil {
		return c, nil
	}
	file, ok := config.(interface{ Name() string })
	if !ok {
		return nil, errors.New("the inventory is no file")
	}
	b, err := io.ReadAll(io.LimitReader(config, maxConfig))
	if err != nil {
		return nil, err
	}
	r, err := parseReference(b)
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", file.Name(), err)
	case r != nil:
		c.watched = &watched{reference: *r, log: c.log}
		return c, nil
	}
	c.files = &auth.Files{Log: c.log, Most: maxInventory}
	c.inventory, err = auth.Follow(c.files, "inventory of machines", func(contents [][]byte) (*Inventory, error) {
		return ParseInventory(contents[0])
	}, file.Name())
	return c, err
}

// Initialize implements cloudprovider.Interface. Until stop is closed it has the library look
// again at Services whose address leaves the inventory.
func (c *Cloud) Initialize(clients cloudprovider.ControllerClientBuilder, stop <-chan struct{}) {
	client := clients.ClientOrDie(component)
	c.mu.Lock()
	c.client = client
	c.mu.Unlock()
	if c.watched != nil {
		if err := c.watched.start(client, stop); err != nil {
			c.log.Error("the inventory of machines is not watched", "err", err)
		}
	}
	go wait.UntilWithContext(wait.ContextForChannel(stop), (*balancers)(c).compare, poolPeriod)
}

// SetInformers implements cloudprovider.InformerUser.
func (c *Cloud) SetInformers(f informers.SharedInformerFactory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.services, c.nodes = f.Core().V1().Services().Lister(), f.Core().V1().Nodes().Lister()
}

// SetClusterCIDRs says where the ranges of pods are, as --cluster-cidr of the servers does:
// the hub leads to no others.
func (c *Cloud) SetClusterCIDRs(pods []netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pods = pods
}

// ProviderName implements cloudprovider.Interface.
func (*Cloud) ProviderName() string { return Name }

// HasClusterID implements cloudprovider.Interface: a hub has one cluster.
func (*Cloud) HasClusterID() bool { return true }

// InstancesV2 implements cloudprovider.Interface.
func (c *Cloud) InstancesV2() (cloudprovider.InstancesV2, bool) { return (*instances)(c), true }

// LoadBalancer implements cloudprovider.Interface. There is none without addresses in the
// inventory, if that is a file; a ConfigMap may have them later.
func (c *Cloud) LoadBalancer() (cloudprovider.LoadBalancer, bool) {
	said, err := c.said()
	return (*balancers)(c), c.watched != nil || err == nil && len(said.pool) > 0
}

// Instances implements cloudprovider.Interface: InstancesV2 has taken its place.
func (*Cloud) Instances() (cloudprovider.Instances, bool) { return nil, false }

// Zones implements cloudprovider.Interface: InstancesV2 has taken its place.
func (*Cloud) Zones() (cloudprovider.Zones, bool) { return nil, false }

// Clusters implements cloudprovider.Interface: there is one.
func (*Cloud) Clusters() (cloudprovider.Clusters, bool) { return nil, false }

// Routes implements cloudprovider.Interface.
func (c *Cloud) Routes() (cloudprovider.Routes, bool) { return (*routes)(c), true }

// said is the inventory as it is now; if nobody has named one it is empty.
func (c *Cloud) said() (*Inventory, error) {
	switch {
	case c.watched != nil:
		return c.watched.get()
	case c.inventory != nil:
		return c.inventory.Get(), nil
	}
	return &Inventory{}, nil
}

// api is what Initialize was given.
func (c *Cloud) api() (kubernetes.Interface, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.client == nil {
		return nil, fmt.Errorf("provider %s has no client yet", Name)
	}
	return c.client, nil
}
