package kinds

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestVolumes(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	// with replaces the source of the volume that the container mounts.
	with := func(s corev1.VolumeSource) func(pod) { return func(p pod) { p.Spec.Volumes[0].VolumeSource = s } }
	projected := func(s ...corev1.VolumeProjection) func(pod) {
		return with(corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: s}})
	}
	items := func(i ...corev1.KeyToPath) func(pod) {
		return with(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s", Items: i}})
	}
	const at = "spec.volumes[0]"
	mutate(t, goodPod(t), validatePod, []mutation[pod]{
		{
			"no name", func(p pod) {
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{VolumeSource: p.Spec.Volumes[0].VolumeSource})
			},
			bad("spec.volumes[1].name: Required value"),
		},
		{"name", func(p pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "a.b", VolumeSource: p.Spec.Volumes[0].VolumeSource})
		}, bad(`spec.volumes[1].name: Invalid value: "a.b"`)},
		{"name twice", func(p pod) { p.Spec.Volumes = append(p.Spec.Volumes, p.Spec.Volumes[0]) }, bad(`spec.volumes[1].name: Duplicate value: "data"`)},
		{"nothing", with(corev1.VolumeSource{}), bad(at + ": Required value: must specify a volume type")},
		{
			"two sources", with(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}, HostPath: &corev1.HostPathVolumeSource{Path: "/x"}}),
			bad(at + ".emptyDir: Forbidden: may not specify more than 1 volume type"),
		},
		{
			"negative size", with(corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: ptr(quantity("-1"))}}),
			bad(at + ".emptyDir.sizeLimit: Forbidden"),
		},
		{"host path", with(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/x", Type: ptr(corev1.HostPathFile)}}), nil},
		{"no host path", with(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{}}), bad(at + ".hostPath.path: Required value")},
		{
			"host path up", with(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/a/../b"}}),
			bad(at + `.hostPath.path: Invalid value: "/a/../b": must not contain '..'`),
		},
		{"host path with dots", with(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/a..b"}}), nil},
		{
			"host path type", with(corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/", Type: ptr(corev1.HostPathType("x"))}}),
			bad(at + ".hostPath.type: Unsupported value"),
		},

		{"secret", items(corev1.KeyToPath{Key: "k", Path: "a/b", Mode: ptr[int32](0o400)}), nil},
		{"secret without name", with(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{}}), bad(at + ".secret.secretName: Required value")},
		{
			"secret mode", with(corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s", DefaultMode: ptr[int32](0o1000)}}),
			bad(at + ".secret.defaultMode: Invalid value: 512: must be a number between 0 and 0777 (octal), both inclusive"),
		},
		{"item empty", items(corev1.KeyToPath{}), bad(at+".secret.items[0].key: Required value", at+".secret.items[0].path: Required value")},
		{"item absolute", items(corev1.KeyToPath{Key: "k", Path: "/a"}), bad(at + `.secret.items[0].path: Invalid value: "/a": must be a relative path`)},
		{"item up", items(corev1.KeyToPath{Key: "k", Path: "a/../../b"}), bad(at + `.secret.items[0].path: Invalid value: "a/../../b": must not contain '..'`)},
		{"item with the kubelet's prefix", items(corev1.KeyToPath{Key: "k", Path: "..data"}), bad(at + `.secret.items[0].path: Invalid value: "..data": must not start with '..'`)},
		{"item mode", items(corev1.KeyToPath{Key: "k", Path: "a", Mode: ptr[int32](-1)}), bad(at + ".secret.items[0].mode: Invalid value: -1")},
		{
			"config map without name", with(corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{DefaultMode: ptr[int32](-1)}}),
			bad(at+".configMap.name: Required value", at+".configMap.defaultMode: Invalid value: -1"),
		},

		{"downward", with(corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels"}},
			{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{ContainerName: "web", Resource: "limits.cpu"}},
		}}}), nil},
		{"downward file", with(corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "a"},
			{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "status.podIP"}},
			{Path: "cpu", ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}},
			{Path: "b", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}, ResourceFieldRef: &corev1.ResourceFieldSelector{}},
		}}}), bad(at+".downwardAPI.items[0]: Required value: one of fieldRef and resourceFieldRef is required",
			at+".downwardAPI.items[1].path: Required value", at+`.downwardAPI.items[1].fieldRef.fieldPath: Unsupported value: "status.podIP"`,
			at+".downwardAPI.items[2].resourceFieldRef.containerName: Required value",
			at+`.downwardAPI.items[3]: Invalid value: "resource": fieldRef and resourceFieldRef can not be specified simultaneously`)},

		{"projected", projected(
			corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: ptr[int64](3607)}},
			corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "ca"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}}}},
			corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}}}}},
		), nil},
		{"projection of nothing", projected(corev1.VolumeProjection{}), bad(at + ".projected.sources[0]: Required value")},
		{"projection of two", projected(corev1.VolumeProjection{
			Secret:    &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "a"}},
			ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "a"}},
		}), bad(at + ".projected.sources[0].configMap: Forbidden: may not specify more than 1 volume type per source")},
		{"path of a token", projected(
			corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "x"}},
			corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "a"}, Items: []corev1.KeyToPath{{Key: "k", Path: "x"}}}},
			corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "x"}},
		), nil},
		{"same path twice", projected(
			corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "b"}, Items: []corev1.KeyToPath{{Key: "k", Path: "x"}}}},
			corev1.VolumeProjection{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "a"}, Items: []corev1.KeyToPath{{Key: "k", Path: "x"}}}},
		), bad(at + `.projected: Invalid value: "a": conflicting duplicate paths`)},
		{
			"short token", projected(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "x", ExpirationSeconds: ptr[int64](599)}}),
			bad(at + ".projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"),
		},
		{
			"eternal token", projected(corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "x", ExpirationSeconds: ptr[int64](1<<32 + 1)}}),
			bad(at + ".projected.sources[0].serviceAccountToken.expirationSeconds: Invalid value"),
		},
		{
			"trust bundle", projected(corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Path: "x"}}),
			bad(at + ".projected.sources[0].clusterTrustBundle: Required value"),
		},
		{
			"pod certificate", projected(corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{MaxExpirationSeconds: ptr[int32](1), KeyPath: "a", CertificateChainPath: "a"}}),
			bad(at+".projected.sources[0].podCertificate.signerName: Required value", at+".projected.sources[0].podCertificate.keyType: Required value",
				at+".projected.sources[0].podCertificate.maxExpirationSeconds: Invalid value: 1", at+`.projected: Invalid value: "a": conflicting duplicate paths`),
		},

		{"claim", with(corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}), bad(at + ".persistentVolumeClaim.claimName: Required value")},
		{"ephemeral without template", with(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}), bad(at + ".ephemeral.volumeClaimTemplate: Required value")},
		{
			"ephemeral", with(corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{}}}),
			bad(at+".ephemeral.volumeClaimTemplate.spec.accessModes: Required value", at+".ephemeral.volumeClaimTemplate.spec.resources[storage]: Required value"),
		},
		{"image", with(corev1.VolumeSource{Image: &corev1.ImageVolumeSource{}}), bad(at+".image.reference: Required value", at+".image.pullPolicy: Required value")},
		{"nfs", with(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "x"}}), bad(at + `.nfs.path: Invalid value: "x": must be an absolute path`)},
		{"nfs empty", with(corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}), bad(at+".nfs.server: Required value", at+".nfs.path: Required value")},
		{
			"csi", with(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{NodePublishSecretRef: &corev1.LocalObjectReference{}}}),
			bad(at+".csi.driver: Required value", at+".csi.nodePublishSecretRef.name: Required value"),
		},
		{"csi in upper case", with(corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "Disk.Example"}}), nil},
		{
			"git repository", with(corev1.VolumeSource{GitRepo: &corev1.GitRepoVolumeSource{Directory: "/x"}}),
			bad(at+".gitRepo.repository: Required value", at+".gitRepo.directory: Invalid value"),
		},
		{
			"iscsi", with(corev1.VolumeSource{ISCSI: &corev1.ISCSIVolumeSource{Lun: 256}}),
			bad(at+".iscsi.targetPortal: Required value", at+".iscsi.iqn: Required value", at+".iscsi.lun: Invalid value: 256"),
		},
		{"rbd", with(corev1.VolumeSource{RBD: &corev1.RBDVolumeSource{}}), bad(at+".rbd.monitors: Required value", at+".rbd.image: Required value")},
	})
}

func TestMounts(t *testing.T) {
	t.Parallel()
	type pod = *corev1.Pod
	mount := func(m ...corev1.VolumeMount) func(pod) { return func(p pod) { web(p).VolumeMounts = m } }
	claim := func(p pod) {
		p.Spec.Volumes[0].VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}
		web(p).VolumeMounts = nil
	}
	const at = "spec.containers[0].volumeMounts[0]"
	mutate(t, goodPod(t), validatePod, []mutation[pod]{
		{"unknown volume", mount(corev1.VolumeMount{Name: "nope", MountPath: "/x"}), bad(at + `.name: Not found: "nope"`)},
		{"nothing", mount(corev1.VolumeMount{}), bad(at+".name: Required value", at+`.name: Not found: ""`, at+".mountPath: Required value")},
		{
			"same path", mount(corev1.VolumeMount{Name: "data", MountPath: "/x"}, corev1.VolumeMount{Name: "data", MountPath: "/x"}),
			bad(`spec.containers[0].volumeMounts[1].mountPath: Invalid value: "/x": must be unique`),
		},
		{"same volume", mount(corev1.VolumeMount{Name: "data", MountPath: "/x"}, corev1.VolumeMount{Name: "data", MountPath: "/y"}), nil},
		{"sub path", mount(corev1.VolumeMount{Name: "data", MountPath: "/x", SubPath: "a/b"}), nil},
		{"absolute sub path", mount(corev1.VolumeMount{Name: "data", MountPath: "/x", SubPath: "/a"}), bad(at + ".subPath: Invalid value")},
		{"sub path up", mount(corev1.VolumeMount{Name: "data", MountPath: "/x", SubPath: "../a"}), bad(at + ".subPath: Invalid value")},
		{
			"both sub paths", mount(corev1.VolumeMount{Name: "data", MountPath: "/x", SubPath: "a", SubPathExpr: "$(A)"}),
			bad(at + ".subPathExpr: Invalid value: \"$(A)\": subPathExpr and subPath are mutually exclusive"),
		},
		{"sub path expression up", mount(corev1.VolumeMount{Name: "data", MountPath: "/x", SubPathExpr: ".."}), bad(at + ".subPathExpr: Invalid value")},
		{"propagation", mount(corev1.VolumeMount{Name: "data", MountPath: "/x", MountPropagation: ptr(corev1.MountPropagationMode("x"))}), bad(at + ".mountPropagation: Unsupported value")},
		{
			"bidirectional", mount(corev1.VolumeMount{Name: "data", MountPath: "/x", MountPropagation: ptr(corev1.MountPropagationBidirectional)}),
			bad(at + ".mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged containers"),
		},
		{"bidirectional privileged", func(p pod) {
			mount(corev1.VolumeMount{Name: "data", MountPath: "/x", MountPropagation: ptr(corev1.MountPropagationBidirectional)})(p)
			web(p).SecurityContext = &corev1.SecurityContext{Privileged: ptr(true)}
		}, nil},
		{"recursive read only", mount(corev1.VolumeMount{Name: "data", MountPath: "/x", ReadOnly: true, RecursiveReadOnly: ptr(corev1.RecursiveReadOnlyEnabled)}), nil},
		{
			"recursive but not read only", mount(corev1.VolumeMount{Name: "data", MountPath: "/x", RecursiveReadOnly: ptr(corev1.RecursiveReadOnlyEnabled)}),
			bad(at + ".recursiveReadOnly: Forbidden: may only be specified when readOnly is true"),
		},
		{"recursive and propagated", mount(corev1.VolumeMount{
			Name: "data", MountPath: "/x", ReadOnly: true, RecursiveReadOnly: ptr(corev1.RecursiveReadOnlyIfPossible), MountPropagation: ptr(corev1.MountPropagationHostToContainer),
		}), bad(at + ".recursiveReadOnly: Forbidden: may only be specified when mountPropagation is None")},
		{"device", func(p pod) {
			claim(p)
			web(p).VolumeDevices = []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
		}, nil},
		{"device of a directory", func(p pod) {
			web(p).VolumeMounts = nil
			web(p).VolumeDevices = []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}}
		}, bad("spec.containers[0].volumeDevices[0].name: Invalid value: \"data\": can only use volume source type of PersistentVolumeClaim")},
		{
			"device unknown", func(p pod) { web(p).VolumeDevices = []corev1.VolumeDevice{{Name: "x", DevicePath: "a/../b"}} },
			bad(`spec.containers[0].volumeDevices[0].name: Not found: "x"`, "spec.containers[0].volumeDevices[0].devicePath: Invalid value"),
		},
		{
			"device empty", func(p pod) { web(p).VolumeDevices = []corev1.VolumeDevice{{}} },
			bad("spec.containers[0].volumeDevices[0].name: Required value", "spec.containers[0].volumeDevices[0].devicePath: Required value"),
		},
		{"device twice", func(p pod) {
			claim(p)
			web(p).VolumeDevices = []corev1.VolumeDevice{{Name: "data", DevicePath: "/dev/x"}, {Name: "data", DevicePath: "/dev/x"}}
		}, bad("spec.containers[0].volumeDevices[1].name: Invalid value", "spec.containers[0].volumeDevices[1].devicePath: Invalid value")},
		{"device and mount", func(p pod) {
			claim(p)
			web(p).VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/x"}}
			web(p).VolumeDevices = []corev1.VolumeDevice{{Name: "data", DevicePath: "/x"}}
		}, bad(at+".name: Invalid value: \"data\": must not already exist in volumeDevices", at+".mountPath: Invalid value: \"/x\": must not already exist as a path in volumeDevices",
			"spec.containers[0].volumeDevices[0].name: Invalid value: \"data\": must not already exist in volumeMounts",
			"spec.containers[0].volumeDevices[0].devicePath: Invalid value: \"/x\": must not already exist as a path in volumeMounts")},
	})
}
