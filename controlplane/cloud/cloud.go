// The provider, as the library knows it.

package cloud

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/hawser-project/hawser/auth"
)

// Name is the provider's, as in --cloud-provider and in the IDs of machines.
const Name = "hawser"

// Register makes the provider known by its Name, once in a process. It says on log when
// the inventory cannot be read; nil discards.
func Register(log *slog.Logger) {
	cloudprovider.RegisterCloudProvider(Name, func(config io.Reader) (cloudprovider.Interface, error) {
		return New(config, log)
	})
}

// Cloud is the provider.
type Cloud struct {
	inventory *auth.File[*Inventory] // nil if there is none
	files     *auth.Files
	log       *slog.Logger

	mu       sync.Mutex // guards the following
	client   kubernetes.Interface
	services corelisters.ServiceLister
	pool     *pool
}

var (
	_ cloudprovider.Interface    = (*Cloud)(nil)
	_ cloudprovider.InformerUser = (*Cloud)(nil)
)

// New reads an inventory from config, which has to be a file, or nil for none. The file is
// followed: as long as a replacement cannot be read, what was there before counts.
func New(config io.Reader, log *slog.Logger) (*Cloud, error) {
	c := &Cloud{log: cmp.Or(log, slog.New(slog.DiscardHandler)), pool: newPool()}
	if config == nil {
		return c, nil
	}
	file, ok := config.(interface{ Name() string })
	if !ok {
		return nil, errors.New("the inventory is no file")
	}
	c.files = &auth.Files{Log: c.log}
	var err error
	c.inventory, err = auth.Follow(c.files, "inventory of machines", func(contents [][]byte) (*Inventory, error) {
		return ParseInventory(contents[0])
	}, file.Name())
	return c, err
}

// Initialize implements cloudprovider.Interface.
func (c *Cloud) Initialize(clients cloudprovider.ControllerClientBuilder, _ <-chan struct{}) {
	client := clients.ClientOrDie("hawser-cloud-provider")
	c.mu.Lock()
	defer c.mu.Unlock()
	c.client = client
}

// SetInformers implements cloudprovider.InformerUser.
func (c *Cloud) SetInformers(f informers.SharedInformerFactory) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.services = f.Core().V1().Services().Lister()
}

// ProviderName implements cloudprovider.Interface.
func (*Cloud) ProviderName() string { return Name }

// HasClusterID implements cloudprovider.Interface: a hub has one cluster.
func (*Cloud) HasClusterID() bool { return true }

// InstancesV2 implements cloudprovider.Interface.
func (c *Cloud) InstancesV2() (cloudprovider.InstancesV2, bool) { return (*instances)(c), true }

// LoadBalancer implements cloudprovider.Interface. There is none without addresses in the
// inventory.
func (c *Cloud) LoadBalancer() (cloudprovider.LoadBalancer, bool) {
	return (*balancers)(c), len(c.said().pool) > 0
}

// Instances implements cloudprovider.Interface: InstancesV2 has taken its place.
func (*Cloud) Instances() (cloudprovider.Instances, bool) { return nil, false }

// Zones implements cloudprovider.Interface: InstancesV2 has taken its place.
func (*Cloud) Zones() (cloudprovider.Zones, bool) { return nil, false }

// Clusters implements cloudprovider.Interface: there is one.
func (*Cloud) Clusters() (cloudprovider.Clusters, bool) { return nil, false }

// Routes implements cloudprovider.Interface: the hub leads to the podCIDRs of nodes by
// itself.
func (*Cloud) Routes() (cloudprovider.Routes, bool) { return nil, false }

// said is the inventory as it is now; without one it is empty.
func (c *Cloud) said() *Inventory {
	if c.inventory == nil {
		return &Inventory{}
	}
	return c.inventory.Get()
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
