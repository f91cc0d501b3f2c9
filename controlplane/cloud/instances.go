package cloud

// Machines, as the node controllers ask for them.

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	cloudprovider "k8s.io/cloud-provider"

	"github.com/hawser-project/hawser/auth/nodekeys"
)

type instances Cloud

var _ cloudprovider.InstancesV2 = (*instances)(nil)

// InstanceExists implements cloudprovider.InstancesV2. The machine of a node that was
// revoked is gone. An identity or an inventory that cannot be read says nothing: that is an
// error.
func (i *instances) InstanceExists(ctx context.Context, n *corev1.Node) (bool, error) {
	_, there, err := i.look(ctx, n)
	return there, err
}

// InstanceShutdown implements cloudprovider.InstancesV2.
func (i *instances) InstanceShutdown(_ context.Context, n *corev1.Node) (bool, error) {
	said, err := (*Cloud)(i).said()
	if err != nil {
		return false, err
	}
	m := said.machine(n)
	return m != nil && m.State == Shutdown, nil
}

// InstanceMetadata implements cloudprovider.InstancesV2. A node keeps the addresses that
// its agent found, unless the inventory has others.
func (i *instances) InstanceMetadata(ctx context.Context, n *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	said, there, err := i.look(ctx, n)
	if err != nil {
		return nil, err
	}
	if !there {
		return nil, fmt.Errorf("node %s: %w", n.Name, cloudprovider.InstanceNotFound)
	}
	m := said.machine(n)
	if m == nil {
		m = &Machine{ID: n.Name}
	}
	all := m.Addresses
	if len(all) == 0 {
		all = n.Status.Addresses
	}
	return &cloudprovider.InstanceMetadata{
		ProviderID: Name + "://" + m.ID, InstanceType: m.Type, Zone: m.Zone, Region: m.Region, NodeAddresses: all, AdditionalLabels: m.Labels,
	}, nil
}

// look returns the inventory, and whether a node has a machine.
func (i *instances) look(ctx context.Context, n *corev1.Node) (*Inventory, bool, error) {
	said, err := (*Cloud)(i).said()
	if err != nil {
		return nil, false, err
	}
	revoked, err := i.revoked(ctx, n.Name)
	return said, err == nil && !revoked && (said.Machines == nil || said.machine(n) != nil), err
}

func (i *instances) revoked(ctx context.Context, node string) (bool, error) {
	client, err := (*Cloud)(i).api()
	if err != nil {
		return false, err
	}
	r, err := nodekeys.NewBook(client).Get(ctx, node)
	if errors.Is(err, nodekeys.ErrUnknown) {
		return false, nil // nobody here keeps identities, or the node is older than they are
	}
	if err != nil {
		return false, err
	}
	return r.Revoked != nil, nil
}
