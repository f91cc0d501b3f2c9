// A light node: the heartbeats and the pods of a node, and what they are told of
// by the API, without the machinery of one that has containers.

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	goruntime "runtime"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-project/hawser/auth/apiclient"
	"github.com/hawser-project/hawser/auth/bootstrap"
	"github.com/hawser-project/hawser/node"
	"github.com/hawser-project/hawser/node/kubeletapi"
	"github.com/hawser-project/hawser/tunnel/memnet"
)

// What a light node says that its machine has.
const (
	lightCPUs   = "8"
	lightMemory = "16Gi"
	lightDisk   = "100Gi"
)

const (
	// registerLimit bounds the wait between tries to register.
	registerLimit = 7 * time.Second
	// certificatePoll is how often a kubelet API that is wanted looks for its
	// certificate.
	certificatePoll = 50 * time.Millisecond
)

// A light node is one life of a member.
type light struct {
	m     *member
	api   *apiclient.API
	conns *node.Connections
	uid   types.UID // of the node, once it is registered
	pods  *lightPods

	said     corev1.ConditionStatus // of Ready, in this life
	reportAt time.Time              // when to write the status although nothing has changed
	failing  string                 // the failure last logged
}

// liveLight is one life of a light node.
func (m *member) liveLight(ctx context.Context) error {
	k := &lazyKubelet{wanted: make(chan struct{}), streams: memnet.NewHandoff(nodeAddr(m.name), kubeletBacklog)}
	link, err := m.fleet.newAgent(m, k)
	if err != nil {
		return err
	}
	l := &light{m: m}
	if l.api, l.conns, err = m.newAPI(link); err != nil {
		return err
	}
	l.pods = newLightPods(m, l.api)
	return m.together(ctx, link, l.conns, l.run, func(ctx context.Context) error { return k.run(ctx, l) })
}

// run registers the node and keeps it alive until ctx is done.
func (l *light) run(ctx context.Context) error {
	if !l.register(ctx) {
		return nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { l.renew(ctx) })
	wg.Go(func() { l.pods.run(ctx) })
	l.report(ctx)
	return nil
}

// register sees to it that the API has the node, and reports whether it does.
func (l *light) register(ctx context.Context) bool {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, registerLimit) {
		err := l.tryRegister(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		l.complain("register", err)
		pause(ctx, wait/2+rand.N(wait))
	}
}

func (l *light) tryRegister(ctx context.Context) error {
	nodes := l.api.Nodes
	n, err := nodes.Create(ctx, l.object(ctx, time.Now()), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if n, err = nodes.Get(ctx, l.m.name, metav1.GetOptions{}); err == nil {
			err = l.write(ctx)
		}
	} else if err == nil {
		l.wrote(ctx, true)
	}
	if err != nil {
		return err
	}
	l.uid = n.UID
	return nil
}

// complain logs a failure that is not the one before.
func (l *light) complain(what string, err error) {
	if text := what + err.Error(); text != l.failing {
		l.failing = text
		l.m.fleet.cfg.Log.Warn("a simulated node cannot "+what+", will keep trying", "node", l.m.name, "err", err)
	}
}

// renew renews the lease until ctx is done.
func (l *light) renew(ctx context.Context) {
	node.RenewLease(ctx, node.LeaseConfig{
		API: l.api, Node: l.m.name, Duration: l.m.fleet.cfg.LeaseDuration, CloseConnections: l.conns.Close,
		UID: func(context.Context) (types.UID, error) { return l.uid, nil },
	})
}

// report writes the status when it has changed, when the API server thinks
// otherwise, and now and then.
func (l *light) report(ctx context.Context) {
	tick := time.NewTicker(l.m.fleet.cfg.StatusUpdate)
	defer tick.Stop()
	for {
		seen, known := l.m.fleet.readyCounter.of(l.m.name)
		want := l.ready(ctx)
		if known && (seen != want || l.said != want) || time.Now().After(l.reportAt) {
			err := l.write(ctx)
			switch {
			case ctx.Err() != nil:
				return
			case apierrors.IsNotFound(err):
				l.complain("write its status", errors.New("the node was deleted; a restart registers it anew"))
			case err != nil:
				l.complain("write its status", err)
			default:
				l.failing = ""
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (l *light) ready(ctx context.Context) corev1.ConditionStatus {
	if l.m.runtime.Healthy(ctx) != nil {
		return corev1.ConditionFalse
	}
	return corev1.ConditionTrue
}

// write patches the conditions, which are all that changes.
func (l *light) write(ctx context.Context) error {
	before, err := l.api.Nodes.Get(ctx, l.m.name, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("get node: %w", err)
	}
	now := time.Now()
	conditions := l.conditions(ctx, now, before.Status.Conditions)
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}})
	if err != nil {
		return fmt.Errorf("encode conditions: %w", err)
	}
	if _, err = l.api.Nodes.Patch(ctx, l.m.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("patch node status: %w", err)
	}
	l.wrote(ctx, readiness(before) != l.ready(ctx))
	return nil
}

// wrote puts the next write off. After a change, which many nodes may have at the
// same time, it is put off by half a period more or less.
func (l *light) wrote(ctx context.Context, changed bool) {
	l.said = l.ready(ctx)
	every := l.m.fleet.cfg.StatusReport
	l.reportAt = time.Now().Add(every)
	if changed {
		l.reportAt = time.Now().Add(every/2 + rand.N(every))
	}
}

// conditions of the node. Those that are as they were in old keep their time.
func (l *light) conditions(ctx context.Context, at time.Time, old []corev1.NodeCondition) []corev1.NodeCondition {
	now := metav1.NewTime(at).Rfc3339Copy()
	list := []corev1.NodeCondition{
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory", Message: "kubelet has sufficient memory available"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure", Message: "kubelet has no disk pressure"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID", Message: "kubelet has sufficient PID available"},
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", Message: "kubelet is posting ready status"},
	}
	if err := l.m.runtime.Healthy(ctx); err != nil {
		r := &list[len(list)-1]
		r.Status, r.Reason, r.Message = corev1.ConditionFalse, "KubeletNotReady", "container runtime is down: "+err.Error()
	}
	for i := range list {
		c := &list[i]
		c.LastHeartbeatTime, c.LastTransitionTime = now, now
		for _, o := range old {
			if o.Type == c.Type && o.Status == c.Status {
				c.LastTransitionTime = o.LastTransitionTime
			}
		}
	}
	return list
}

// object is the node as it is first made.
func (l *light) object(ctx context.Context, now time.Time) *corev1.Node {
	m := l.m
	labels := map[string]string{
		corev1.LabelHostname: m.name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: goruntime.GOARCH,
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": goruntime.GOARCH,
	}
	maps.Copy(labels, m.fleet.labels(m))
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(lightCPUs), corev1.ResourceMemory: resource.MustParse(lightMemory),
		corev1.ResourceEphemeralStorage: resource.MustParse(lightDisk),
		corev1.ResourcePods:             *resource.NewQuantity(int64(m.fleet.cfg.MaxPods), resource.DecimalSI),
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name: m.name, Labels: labels,
			Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"},
		},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity,
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: m.ip.String()}, {Type: corev1.NodeHostName, Address: m.name},
			},
			NodeInfo: corev1.NodeSystemInfo{
				MachineID: m.name, SystemUUID: m.name, BootID: m.name, KernelVersion: "none", OSImage: "simulated",
				ContainerRuntimeVersion: "fake://1", KubeletVersion: version, OperatingSystem: "linux", Architecture: goruntime.GOARCH,
			},
			Conditions: l.conditions(ctx, now, nil),
		},
	}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = node.KubeletPort
	return n
}

// A lazyKubelet is a kubelet API that is there once somebody has asked for it:
// most nodes of a fleet are never asked, and a serving certificate costs as much
// as joining.
type lazyKubelet struct {
	once    sync.Once
	wanted  chan struct{} // closed when somebody has asked
	streams *memnet.Handoff
}

// Inject implements agent.Kubelet.
func (k *lazyKubelet) Inject(ctx context.Context, c net.Conn) error {
	k.once.Do(func() { close(k.wanted) })
	return k.streams.Inject(ctx, c)
}

// run serves the API, from when it is wanted until ctx is done.
func (k *lazyKubelet) run(ctx context.Context, l *light) error {
	select {
	case <-ctx.Done():
		return k.streams.Close()
	case <-k.wanted:
	}
	m := l.m
	rotation, err := bootstrap.NewRotation(bootstrap.RotationConfig{
		Identity: m.identity, Requests: l.api.CSRs,
		ConfigMaps: l.api.ConfigMaps(metav1.NamespaceSystem), TrustChanged: l.conns.Renew, Renewed: l.conns.Close, Log: m.fleet.cfg.Log,
	})
	if err != nil {
		return errors.Join(err, k.streams.Close())
	}
	s, err := kubeletapi.New(kubeletapi.Config{
		NodeName: m.name, Pods: l.pods, Runtime: m.runtime, TLS: rotation.ServerTLS(), ClientCAs: m.identity.ClientCAs, DataDir: m.fleet.cfg.Dir, Log: m.fleet.cfg.Log,
	})
	if err != nil {
		return errors.Join(err, k.streams.Close())
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { _ = rotation.Run(ctx) }) // never fails
	// Who has asked waits in the backlog until there is something to show.
	for {
		if _, err := rotation.GetCertificate(nil); err == nil || ctx.Err() != nil {
			return s.Serve(ctx, k.streams)
		}
		pause(ctx, certificatePoll)
	}
}
