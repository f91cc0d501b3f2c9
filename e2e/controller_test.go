// A controller in a pod, made with controller-runtime as others make theirs: it knows the
// API server and itself by what the pod is given, and may what its account may.

package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	reconciling "sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// controllerName is the controller's account, and its lease.
const controllerName = "copier"

// reconcile keeps data.have of each config map of a namespace that has the label
// copy=yes the same as data.want, for as long as it leads.
func reconcile(ns string) error {
	cfg, err := rest.InClusterConfig()
	if err != nil {
		return err
	}
	fmt.Println("listening to", cfg.Host)
	log.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(os.Stdout, nil)))
	m, err := manager.New(cfg, manager.Options{
		Cache: cache.Options{
			DefaultNamespaces: map[string]cache.Config{ns: {}},
			ByObject:          map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {Label: labels.SelectorFromSet(labels.Set{"copy": "yes"})}},
		},
		LeaderElection: true, LeaderElectionID: controllerName, LeaderElectionNamespace: ns,
		Metrics: metrics.Options{BindAddress: "0"},
	})
	if err != nil {
		return err
	}
	copies := reconciling.Func(func(ctx context.Context, r reconciling.Request) (reconciling.Result, error) {
		var of corev1.ConfigMap
		if err := m.GetClient().Get(ctx, r.NamespacedName, &of); err != nil || of.Data["have"] == of.Data["want"] {
			return reconciling.Result{}, client.IgnoreNotFound(err)
		}
		of.Data["have"] = of.Data["want"]
		return reconciling.Result{}, m.GetClient().Update(ctx, &of)
	})
	if err := builder.ControllerManagedBy(m).For(&corev1.ConfigMap{}).Complete(copies); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	return m.Start(ctx)
}

// A controller works with its account's role, is refused without it, and its token ends
// with its pod.
func TestControllerInPod(t *testing.T) {
	bin(t) // before the tests that are timed
	t.Parallel()
	c := startUp(t, "--nodes", "1")
	maps := c.client.CoreV1().ConfigMaps("default")
	for name, label := range map[string]string{"ours": "yes", "others": "no"} {
		_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"copy": label}}, Data: map[string]string{"want": "one"}}, metav1.CreateOptions{})
		must(t, err)
	}
	c.mustKubectl(t, "", "create", "serviceaccount", controllerName)
	c.mustKubectl(t, "", "create", "role", "copies", "--verb=get,list,watch,create,update,patch", "--resource=configmaps,events,events.events.k8s.io,leases.coordination.k8s.io")
	c.mustKubectl(t, "", "create", "rolebinding", "copies", "--role=copies", "--serviceaccount=default:"+controllerName)
	c.roleInPodWith(t, "copier", "", fmt.Sprintf(`,"serviceAccountName":%q`, controllerName), "controller default")
	have := func(name, want string) func() error {
		return func() error {
			m, err := maps.Get(t.Context(), name, metav1.GetOptions{})
			if err == nil && m.Data["have"] != want {
				err = fmt.Errorf("%s has %q", name, m.Data["have"])
			}
			return err
		}
	}
	wants := func(want string) {
		t.Helper()
		must(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			m, err := maps.Get(t.Context(), "ours", metav1.GetOptions{})
			if err != nil {
				return err
			}
			m.Data["want"] = want
			_, err = maps.Update(t.Context(), m, metav1.UpdateOptions{})
			return err
		}))
	}
	eventually(t, "what is there is reconciled", have("ours", "one"))
	wants("two")
	eventually(t, "what changes is reconciled", have("ours", "two"))
	must(t, have("others", "")())
	lease, err := c.client.CoordinationV1().Leases("default").Get(t.Context(), controllerName, metav1.GetOptions{})
	must(t, err)
	if lease.Spec.HolderIdentity == nil || !strings.HasPrefix(*lease.Spec.HolderIdentity, "copier_") {
		t.Errorf("the lease is of %v", lease.Spec.HolderIdentity)
	}
	as := rest.AnonymousClientConfig(c.rest)
	as.BearerToken = c.mustKubectl(t, "", "exec", "copier", "--", "cat", "/var/run/secrets/kubernetes.io/serviceaccount/token")
	its, err := kubernetes.NewForConfig(as)
	must(t, err)
	reads := func() error {
		_, err := its.CoreV1().ConfigMaps("default").Get(t.Context(), "ours", metav1.GetOptions{})
		return err
	}
	must(t, reads())

	c.mustKubectl(t, "", "delete", "rolebinding", "copies")
	eventually(t, "the account may not read", func() error {
		if err := reads(); !apierrors.IsForbidden(err) {
			return errors.Join(err, errors.New("not 403"))
		}
		return nil
	})
	wants("three")
	eventually(t, "the controller is refused", func() error {
		if out, said, _ := c.kubectl(t, "", "logs", "copier"); !strings.Contains(out, "is forbidden: User \\\"system:serviceaccount:default:"+controllerName) {
			return errors.New(out + said)
		}
		return nil
	})
	must(t, have("ours", "two")())
	c.mustKubectl(t, "", "delete", "pod", "copier", "--now")
	eventually(t, "the token has ended with the pod", func() error {
		if err := reads(); !apierrors.IsUnauthorized(err) {
			return errors.Join(err, errors.New("not 401"))
		}
		return nil
	})
}
