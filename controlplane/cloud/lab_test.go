package cloud

// What the tests of the provider with Kubernetes' own controllers have in common: a server
// made of maps, in fake time.

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	cloudprovider "k8s.io/cloud-provider"
	_ "k8s.io/cloud-provider/options" // the feature gates of its controllers
	"k8s.io/component-base/metrics/prometheus/controllers"
	"k8s.io/klog/v2"

	"github.com/hawser-project/hawser/controlplane/apitest"
)

func TestMain(m *testing.M) {
	klog.LogToStderr(false) // a line for each node, in fake time
	klog.SetOutput(io.Discard)
	utilruntime.ErrorHandlers = nil // one of them counts in the time that is not fake
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// counted is where the controllers count that they run.
var counted = sync.OnceValue(func() *controllers.ControllerManagerMetrics { return controllers.NewControllerManagerMetrics("test") })

// A lab is a server, and controllers on it.
type lab struct {
	*testing.T
	ctx    context.Context
	client *fake.Clientset
	wg     sync.WaitGroup
}

// inLab runs f in fake time, on a server that holds objs.
func inLab(t *testing.T, f func(l *lab), objs ...runtime.Object) {
	t.Helper()
	counted()
	synctest.Test(t, func(t *testing.T) {
		client, _, err := apitest.New(objs...)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		l := &lab{T: t, ctx: ctx, client: client}
		f(l)
		cancel()
		l.wg.Wait()
	})
}

// provider makes a provider with config.
func (l *lab) provider(config string) *Cloud {
	l.Helper()
	c, _, err := open(l.T, config)
	if err != nil {
		l.Fatal(err)
	}
	return c
}

// open makes a provider with a file that holds config, and returns the name of that.
func open(t *testing.T, config string) (*Cloud, string, error) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(name, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	c, err := New(file, nil)
	return c, name, err
}

// run starts a controller that start makes, as the library starts it.
func (l *lab) run(c cloudprovider.Interface, start func(informers.SharedInformerFactory) (run func(context.Context), err error)) {
	l.Helper()
	f := informers.NewSharedInformerFactory(l.client, 0)
	c.Initialize(clients{l.client}, l.ctx.Done())
	if user, ok := c.(cloudprovider.InformerUser); ok {
		user.SetInformers(f)
	}
	run, err := start(f)
	if err != nil {
		l.Fatal(err)
	}
	f.Start(l.ctx.Done())
	f.WaitForCacheSync(l.ctx.Done())
	l.wg.Go(func() { run(l.ctx) })
	l.wg.Go(func() { <-l.ctx.Done(); f.Shutdown() })
	synctest.Wait()
}

// later lets time pass.
func (*lab) later(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// nodes are the names of the nodes that are left.
func (l *lab) nodes() string {
	l.Helper()
	all, err := l.client.CoreV1().Nodes().List(l.ctx, metav1.ListOptions{})
	if err != nil {
		l.Fatal(err)
	}
	var names []string
	for i := range all.Items {
		names = append(names, all.Items[i].Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// events are those of a reason that were made, as "OBJECT: text". One that is repeated is
// there once.
func (l *lab) events(reason string) []string {
	var out []string
	for _, a := range l.client.Actions() { // in fake time two events of an object may have one name, and the server keeps one
		if c, ok := a.(clienttesting.CreateAction); ok && a.GetResource().Resource == "events" {
			if e, ok := c.GetObject().(*corev1.Event); ok && e.Reason == reason {
				out = append(out, e.InvolvedObject.Name+": "+e.Message)
			}
		}
	}
	slices.Sort(out)
	return out
}

// silent is a node that is not ready.
func silent(name string) *corev1.Node {
	n := node(name, "")
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionUnknown}}
	return n
}
