// hawser manifest ccm: what the cloud controller manager may do, and its pods.

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/hawser-project/hawser/auth/nodekeys"
)

const (
	// ccmAccount is the service account of hawser-ccm, the name of its roles and of its pods.
	ccmAccount = "hawser-ccm"
	// ccmLease is the Lease by which the library elects a leader.
	ccmLease = "cloud-controller-manager"
	// ccmPort is where its health and metrics are.
	ccmPort = 10258
	// ccmInventory is the ConfigMap with the inventory of machines, and ccmInventoryKey its key
	// (cloud.DefaultKey, whose package this program does without).
	ccmInventory, ccmInventoryKey = "hawser-machines", "inventory.yaml"
	// ccmConfig is the file of --cloud-config in its pods, which names that.
	ccmConfig = "cloud-config.yaml"
)

func newManifestCCM() *cobra.Command {
	var image string
	var replicas int32
	cmd := &cobra.Command{
		Use: "ccm", Short: "The service account of hawser-ccm, what it may do, and its Deployment",
		Long: "Prints the service account " + ccmAccount + " in namespace " + metav1.NamespaceSystem + " and its roles; with --image also a Deployment.\n" +
			"The inventory of machines is yours to make: ConfigMap " + ccmInventory + " there, key " + ccmInventoryKey + ", which it may read and watch.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			objects := ccmRoles()
			switch {
			case image != "":
				if replicas < 1 || replicas > maxHubs {
					return fmt.Errorf("--replicas %d: want 1 to %d", replicas, maxHubs)
				}
				objects = append(objects, ccmPods(image, replicas)...)
			case cmd.Flags().Changed("replicas"):
				return errors.New("--replicas needs --image: an image with hawser-ccm in its PATH")
			}
			return printObjects(cmd.OutOrStdout(), objects...)
		},
	}
	cmd.Flags().StringVar(&image, "image", "", "image with hawser-ccm in its PATH (default none: only the account and its roles)")
	cmd.Flags().Int32Var(&replicas, "replicas", 1, "how many pods, of which one leads")
	return cmd
}

// ccmRoles are those of the role system:cloud-controller-manager that Kubernetes documents,
// less what its controllers here do not do, and the records by which nodes are revoked.
func ccmRoles() []runtime.Object {
	rule := func(group, resource string, names []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, ResourceNames: names, Verbs: verbs}
	}
	meta := func(namespace string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: ccmAccount}
	}
	account := []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceSystem, Name: ccmAccount}}
	ref := func(kind, name string) rbacv1.RoleRef {
		return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
	}
	return []runtime.Object{
		&corev1.ServiceAccount{ObjectMeta: meta(metav1.NamespaceSystem)},
		&rbacv1.ClusterRole{ObjectMeta: meta(""), Rules: []rbacv1.PolicyRule{
			rule("", "events", nil, "create", "patch", "update"),
			rule("", "nodes", nil, "get", "list", "watch", "update", "patch", "delete"),
			rule("", "nodes/status", nil, "update", "patch"),
			rule("", "services", nil, "get", "list", "watch", "update", "patch"),
			rule("", "services/status", nil, "update", "patch"),
		}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: meta(""), Subjects: account, RoleRef: ref("ClusterRole", ccmAccount)},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: ccmAccount + "-auth-delegator"}, Subjects: account, RoleRef: ref("ClusterRole", "system:auth-delegator")},
		&rbacv1.Role{ObjectMeta: meta(metav1.NamespaceSystem), Rules: []rbacv1.PolicyRule{
			rule("coordination.k8s.io", "leases", nil, "create"),
			rule("coordination.k8s.io", "leases", []string{ccmLease}, "get", "update"),
			rule("", "configmaps", []string{ccmInventory}, "get", "list", "watch"),
		}},
		&rbacv1.RoleBinding{ObjectMeta: meta(metav1.NamespaceSystem), Subjects: account, RoleRef: ref("Role", ccmAccount)},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: ccmAccount + "-authentication-reader"},
			Subjects:   account, RoleRef: ref("Role", "extension-apiserver-authentication-reader"),
		},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: nodekeys.Namespace}},
		&rbacv1.Role{ObjectMeta: meta(nodekeys.Namespace), Rules: []rbacv1.PolicyRule{rule("", "configmaps", nil, "get")}},
		&rbacv1.RoleBinding{ObjectMeta: meta(nodekeys.Namespace), Subjects: account, RoleRef: ref("Role", ccmAccount)},
	}
}

// ccmPods run where nodes are not yet initialized, as those are what it initializes.
func ccmPods(image string, replicas int32) []runtime.Object {
	labels, user, no, yes := map[string]string{"app": ccmAccount}, int64(hubUser), false, true
	container := corev1.Container{
		Name: ccmAccount, Image: image, Command: []string{"hawser-ccm", "--cloud-config=/etc/hawser/" + ccmConfig},
		Ports: []corev1.ContainerPort{{Name: "health", ContainerPort: ccmPort}},
		LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: "/healthz", Port: intstr.FromInt32(ccmPort), Scheme: corev1.URISchemeHTTPS,
		}}},
		VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/hawser", ReadOnly: true}},
		SecurityContext: &corev1.SecurityContext{
			AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes, Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
	meta := metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: ccmAccount, Labels: labels}
	config := &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{ccmConfig: "configMap: " + metav1.NamespaceSystem + "/" + ccmInventory + "\n"}}
	return []runtime.Object{config, &appsv1.Deployment{
		ObjectMeta: meta,
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
				ServiceAccountName: ccmAccount, PriorityClassName: "system-cluster-critical", Containers: []corev1.Container{container},
				SecurityContext: &corev1.PodSecurityContext{
					RunAsNonRoot: &yes, RunAsUser: &user, RunAsGroup: &user,
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
				Tolerations: []corev1.Toleration{
					{Key: "node.cloudprovider.kubernetes.io/uninitialized", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
					{Key: "node-role.kubernetes.io/control-plane", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoSchedule},
				},
				Volumes: []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: ccmAccount},
				}}}},
			}},
		},
	}}
}
