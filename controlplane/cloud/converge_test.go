package cloud

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/api"
	nodecontroller "k8s.io/cloud-provider/controllers/node"
	"k8s.io/cloud-provider/controllers/nodelifecycle"
	"k8s.io/cloud-provider/fake"
)

// A thrifty cloud takes so many calls a second: more wait, or are refused. It counts those
// about a node.
type thrifty struct {
	cloudprovider.Interface
	limit  *rate.Limiter
	refuse bool

	mu    sync.Mutex // guards the following
	calls map[string]int
}

func (c *thrifty) InstancesV2() (cloudprovider.InstancesV2, bool) { return c, true }

func (c *thrifty) call(ctx context.Context, n *corev1.Node) (cloudprovider.InstancesV2, error) {
	c.mu.Lock()
	c.calls[n.Name]++
	c.mu.Unlock()
	if c.refuse && !c.limit.Allow() {
		return nil, errors.New("too many calls")
	}
	all, _ := c.Interface.InstancesV2()
	if c.refuse {
		return all, nil
	}
	return all, c.limit.Wait(ctx)
}

func (c *thrifty) InstanceExists(ctx context.Context, n *corev1.Node) (bool, error) {
	all, err := c.call(ctx, n)
	if err != nil {
		return false, err
	}
	return all.InstanceExists(ctx, n)
}

func (c *thrifty) InstanceShutdown(ctx context.Context, n *corev1.Node) (bool, error) {
	all, err := c.call(ctx, n)
	if err != nil {
		return false, err
	}
	return all.InstanceShutdown(ctx, n)
}

func (c *thrifty) InstanceMetadata(ctx context.Context, n *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
	all, err := c.call(ctx, n)
	if err != nil {
		return nil, err
	}
	return all.InstanceMetadata(ctx, n)
}

// most is how many calls there were about the node with most of them, since the last time.
func (c *thrifty) most() (calls int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.calls {
		calls = max(calls, n)
	}
	clear(c.calls)
	return calls
}

// uninitialized are how many nodes have the taint of such, or no provider ID.
func (l *lab) uninitialized() (left int) {
	l.Helper()
	all, err := l.client.CoreV1().Nodes().List(l.ctx, metav1.ListOptions{})
	if err != nil {
		l.Fatal(err)
	}
	for i := range all.Items {
		if spec := all.Items[i].Spec; len(spec.Taints) > 0 || spec.ProviderID == "" {
			left++
		}
	}
	return left
}

// TestManyNodes: 500 nodes and a cloud of ten calls a second converge, whether that has
// callers wait or refuses them, and from then on a node costs one call a period while it is
// ready, and three with the shorter period's two if it is not.
func TestManyNodes(t *testing.T) {
	const (
		nodes     = 500
		perSecond = 10
		every     = 10 * time.Minute // --node-status-update-frequency
		seldom    = 5 * time.Minute  // --node-monitor-period
	)
	var objs []runtime.Object
	ids := &fake.Cloud{EnableInstancesV2: true, ExistsByProviderID: true}
	ids.OverrideInstanceMetadata = func(_ context.Context, n *corev1.Node) (*cloudprovider.InstanceMetadata, error) {
		return &cloudprovider.InstanceMetadata{ProviderID: "fake://" + n.Name, NodeAddresses: n.Status.Addresses}, nil
	}
	for i := range nodes {
		n := silent(fmt.Sprintf("n-%d", i))
		if i%2 == 0 {
			n.Status.Conditions[0].Status = corev1.ConditionTrue
		}
		n.Spec.Taints = []corev1.Taint{{Key: api.TaintExternalCloudProvider, Value: "true", Effect: corev1.TaintEffectNoSchedule}}
		objs = append(objs, n)
	}
	for name, tc := range map[string]struct {
		of     func(l *lab) cloudprovider.Interface
		refuse bool
	}{
		"it waits":   {func(*lab) cloudprovider.Interface { return ids }, false},
		"it refuses": {func(*lab) cloudprovider.Interface { return ids }, true},
		"hawser":     {func(l *lab) cloudprovider.Interface { return l.provider("{}") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			inLab(t, func(l *lab) {
				c := &thrifty{Interface: tc.of(l), limit: rate.NewLimiter(perSecond, 1), refuse: tc.refuse, calls: make(map[string]int)}
				began := time.Now()
				l.run(c, func(f informers.SharedInformerFactory) (func(context.Context), error) {
					byNode, err := nodecontroller.NewCloudNodeController(f.Core().V1().Nodes(), l.client, c, every, 1, 1)
					if err != nil {
						return nil, err
					}
					life, err := nodelifecycle.NewCloudNodeLifecycleController(f.Core().V1().Nodes(), l.client, c, seldom, 1)
					return func(ctx context.Context) {
						l.wg.Go(func() { life.Run(ctx, counted()) })
						byNode.RunWithContext(ctx, counted())
					}, err
				})
				for l.uninitialized() > 0 {
					if time.Since(began) > every {
						l.Fatalf("%d nodes are not initialized", l.uninitialized())
					}
					l.later(time.Second)
				}
				took := time.Since(began)
				l.Logf("%d nodes after %v, %d calls about one at most", nodes, took, c.most())
				<-time.After(every - took%every) // a whole period
				c.most()
				l.later(every)
				if n := c.most(); n > 2+2*2 {
					l.Errorf("%d calls about a node in %v", n, every)
				}
				if got := l.events("DeletingNode"); len(got) > 0 {
					l.Errorf("%q", got)
				}
			}, objs...)
		})
	}
}
