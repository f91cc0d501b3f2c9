// hawser manifest ccm: what the cloud controller manager may do, and its pods.

package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/hawser-project/hawser/auth/nodekeys"
	"github.com/hawser-project/hawser/controlplane/cloud"
)

const (
	// ccmAccount is the service account of hawser-ccm, the name of its roles and of its pods.
	ccmAccount = "hawser-ccm"
	// ccmRole is the ClusterRole that Kubernetes documents for a cloud controller manager.
	ccmRole = "cloud-controller-manager"
	// ccmProvider is the account of the provider itself, where controllers have accounts of
	// their own.
	ccmProvider = "hawser-cloud-provider"
	// ccmLease is the Lease by which the library elects a leader.
	ccmLease = "cloud-controller-manager"
	// ccmPort is where its health and metrics are.
	ccmPort = 10258
	// ccmInventory is the ConfigMap with the inventory of machines, at its default key.
	ccmInventory = "hawser-machines"
	// ccmConfig is the file of --cloud-config in its pods, which names that.
	ccmConfig = "cloud-config.yaml"
)

// ccmManifest is the flags of hawser manifest ccm.
type ccmManifest struct {
	image     string
	replicas  int32
	daemonSet bool
	least     bool // the controllers may do what they do, and no more
	accounts  bool // each controller has an account of its own
}

func newManifestCCM() *cobra.Command {
	var m ccmManifest
	cmd := &cobra.Command{
		Use: "ccm", Short: "The service account of hawser-ccm, what it may do, and its pods",
		Long: "Prints the service account " + ccmAccount + " in namespace " + metav1.NamespaceSystem + " and its roles; with --image also a Deployment or a DaemonSet.\n" +
			"The ClusterRole " + ccmRole + " is the one that Kubernetes documents, with what it leaves out: services/status, serviceaccounts/token, leases.\n" +
			"The inventory of machines is yours to make: ConfigMap " + ccmInventory + " there, key " + cloud.DefaultKey + ", which it may read and watch.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			objects := m.roles()
			switch {
			case m.image == "" && (m.daemonSet || cmd.Flags().Changed("replicas")):
				return errors.New("--replicas and --daemonset need --image: an image with hawser-ccm in its PATH")
			case m.daemonSet && cmd.Flags().Changed("replicas"):
				return errors.New("--replicas has no effect with --daemonset: there is a pod on each machine of the control plane")
			case m.image != "":
				if err := checkImage(m.image); err != nil {
					return err
				}
				if m.replicas < 1 || m.replicas > maxHubs {
					return fmt.Errorf("--replicas %d: want 1 to %d", m.replicas, maxHubs)
				}
				objects = append(objects, m.pods()...)
			}
			return printObjects(cmd.OutOrStdout(), objects...)
		},
	}
	f := cmd.Flags()
	f.StringVar(&m.image, "image", "", "image with hawser-ccm in its PATH (default none: only the account and its roles)")
	f.Int32Var(&m.replicas, "replicas", 1, "how many pods, of which one leads")
	f.BoolVar(&m.daemonSet, "daemonset", false, "with --image: a DaemonSet for the machines of the control plane, in their network, in place of a Deployment")
	f.BoolVar(&m.least, "least-privilege", false, "the ClusterRole "+ccmAccount+", with what the controllers do here and no more, in place of "+ccmRole)
	f.BoolVar(&m.accounts, "use-service-account-credentials", false, "a role for the account of each controller, as hawser-ccm has with this flag, which its pods get")
	return cmd
}

func rule(group, resource string, names []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs}
}

// ccmDocumented are the rules of the ClusterRole that Kubernetes documents for a cloud
// controller manager, and services/status, which its controllers write.
func ccmDocumented() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("", "events", nil, "create", "patch", "update"),
		rule("", "nodes", nil, rbacv1.VerbAll),
		rule("", "nodes/status", nil, "update", "patch"),
		rule("", "services", nil, "get", "list", "watch", "update", "patch"),
		rule("", "services/status", nil, "update", "patch"),
		rule("", "serviceaccounts", nil, "create"),
		rule("", "persistentvolumes", nil, "get", "list", "update", "watch"),
		rule("", "endpoints", nil, "create", "get", "list", "watch", "update"),
	}
}

// ccmLeast are the rules without those that nothing here uses.
func ccmLeast() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		rule("", "events", nil, "create", "patch", "update"),
		rule("", "nodes", nil, "get", "list", "watch", "update", "patch", "delete"),
		rule("", "nodes/status", nil, "update", "patch"),
		rule("", "services", nil, "get", "list", "watch", "update", "patch"),
		rule("", "services/status", nil, "update", "patch"),
	}
}

// ccmAccounts are the accounts that hawser-ccm makes and uses with
// --use-service-account-credentials, by the library's names for its clients, and what each
// may do. What the controllers watch, all of them watch as hawser-ccm.
func ccmAccounts() map[string][]rbacv1.PolicyRule {
	events := rule("", "events", nil, "create", "patch", "update")
	return map[string][]rbacv1.PolicyRule{
		"node-controller":  {events, rule("", "nodes", nil, "get", "list", "update", "patch", "delete"), rule("", "nodes/status", nil, "update", "patch")},
		"route-controller": {events, rule("", "nodes", nil, "get", "list"), rule("", "nodes/status", nil, "patch")},
		"service-controller": {
			events, rule("", "nodes", nil, "get", "list"), rule("", "services", nil, "get", "list", "update", "patch"), rule("", "services/status", nil, "update", "patch"),
		},
		ccmProvider: {events, rule("", "services", nil, "patch")},
	}
}

// roles are the account, its roles, and those of the controllers' accounts.
func (m *ccmManifest) roles() []runtime.Object {
	account, provider := ccmSubject(ccmAccount), ccmSubject(ccmAccount)
	cluster, rules := ccmRole, ccmDocumented()
	if m.least {
		cluster, rules = ccmAccount, ccmLeast()
	}
	own := []rbacv1.PolicyRule{
		rule("coordination.k8s.io", "leases", nil, "create"),
		rule("coordination.k8s.io", "leases", []string{ccmLease}, "get", "update"),
	}
	objects := []runtime.Object{&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: ccmAccount}}}
	if m.accounts {
		provider = append(provider, ccmSubject(ccmProvider)...) // and the manager's own, for one that runs without the flag
		all := ccmAccounts()
		names := slices.Sorted(maps.Keys(all))
		own = append(own, rule("", "serviceaccounts", nil, "create"), rule("", "serviceaccounts", names, "get"), rule("", "serviceaccounts/token", names, "create"))
		for _, name := range names {
			objects = append(objects, bound(ccmAccount+":"+name, "", ccmSubject(name), all[name]...)...)
		}
	}
	binding := cluster
	objects = append(objects, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: cluster}, Rules: rules})
	if !m.least {
		binding = ccmAccount + ":" + ccmRole // another's manager may have bound that role to itself
	}
	objects = append(objects,
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: binding}, Subjects: account, RoleRef: roleRef("ClusterRole", cluster)},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: ccmAccount + "-auth-delegator"}, Subjects: account, RoleRef: roleRef("ClusterRole", "system:auth-delegator")},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: ccmAccount + "-authentication-reader"},
			Subjects:   account, RoleRef: roleRef("Role", "extension-apiserver-authentication-reader"),
		},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: nodekeys.Namespace}})
	objects = append(objects, bound(ccmAccount, metav1.NamespaceSystem, account, own...)...)
	objects = append(objects, bound(ccmProvider, metav1.NamespaceSystem, provider, rule("", "configmaps", []string{ccmInventory}, "get", "list", "watch"))...)
	return append(objects, bound(ccmProvider, nodekeys.Namespace, provider, rule("", "configmaps", nil, "get"))...)
}

// ccmSubject is a service account of the namespace in which all of them are.
func ccmSubject(name string) []rbacv1.Subject {
	return []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: name}}
}

func roleRef(kind, name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}

// bound is a role and its binding to who, in a namespace or, if that is empty, everywhere.
func bound(name, namespace string, who []rbacv1.Subject, rules ...rbacv1.PolicyRule) []runtime.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	if namespace == "" {
		return []runtime.Object{
			&rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules},
			&rbacv1.ClusterRoleBinding{ObjectMeta: meta, Subjects: who, RoleRef: roleRef("ClusterRole", name)},
		}
	}
	return []runtime.Object{&rbacv1.Role{ObjectMeta: meta, Rules: rules}, &rbacv1.RoleBinding{ObjectMeta: meta, Subjects: who, RoleRef: roleRef("Role", name)}}
}

// pods run where nodes are not yet initialized, as those are what it initializes.
func (m *ccmManifest) pods() []runtime.Object {
	labels := map[string]string{"app": ccmAccount}
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: ccmAccount, Labels: labels}
	config := &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{ccmConfig: "configMap: " + metav1.NamespaceSystem + "/" + ccmInventory + "\n"}}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: m.podSpec()}
	if m.daemonSet {
		template.Spec.HostNetwork = true
		template.Spec.NodeSelector = map[string]string{controlPlane: ""}
		return []runtime.Object{config, &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}}}
	}
	return []runtime.Object{config, &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &m.replicas, Selector: selector, Template: template}}}
}

// controlPlane is the label of the machines of the control plane, and the key of their taint.
const controlPlane = "node-role.kubernetes.io/control-plane"

func (m *ccmManifest) podSpec() corev1.PodSpec {
	user, no, yes := int64(hubUser), false, true
	command := []string{"hawser-ccm", "--cloud-config=/etc/hawser/" + ccmConfig}
	if m.accounts {
		command = append(command, "--use-service-account-credentials")
	}
	return corev1.PodSpec{
		ServiceAccountName: ccmAccount, PriorityClassName: "system-cluster-critical",
		Containers: []corev1.Container{{
			Name: ccmAccount, Image: m.image, Command: command,
			Ports: []corev1.ContainerPort{{Name: "health", ContainerPort: ccmPort}},
			LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
				Path: "/healthz", Port: intstr.FromInt32(ccmPort), Scheme: corev1.URISchemeHTTPS,
			}}},
			VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/hawser", ReadOnly: true}},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}},
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Tolerations: []corev1.Toleration{
			{Key: "node.cloudprovider.kubernetes.io/uninitialized", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
			{Key: controlPlane, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
		},
		Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: ccmAccount},
		}}}},
	}
}
